"""Names of other systems, table by table of the pages for those who move here.

Names of packages that are installed here are read from them. Those of the other systems are plain
lists: uipath-langchain 0.18 and langchain-mcp-adapters 0.3 (each needs an environment of its own),
Cortex-Flow (maverde73/cortex-flow, 2025-10) and Aether Frame (wudalu/aether-frame, 2026-04).
"""

import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Tables = dict[str, set[str]]
"""From the heading of a table to the names in its first column."""


def members(kind: type[Any], *, arguments_of: str = "") -> set[str]:
    """The public methods, properties and fields of a class, and the arguments of some methods."""
    found = {name for name in dir(kind) if not name.startswith("_")}
    for method in arguments_of.split():
        found |= arguments(inspect.getattr_static(kind, method))
    return found


def arguments(function: Any) -> set[str]:
    function = function.__func__ if isinstance(function, classmethod | staticmethod) else function
    return set(inspect.signature(function).parameters) - {"self", "cls"}


def keys(kind: Any) -> set[str]:
    """Of a TypedDict or of a dataclass."""
    return set(kind.__annotations__)


def attributes(kind: type[Any]) -> set[str]:
    """What a class sets on itself, besides what it declares."""
    found = set[str]()
    for base in kind.__mro__[:-1]:
        found |= set(re.findall(r"\bself\.([a-z]\w*)(?:: .+)? = ", inspect.getsource(base)))
    return found


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """The public modules of a package that can be imported here."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "._" not in found.name:
            try:
                yield importlib.import_module(found.name)
            except ImportError:  # for a package that is not installed
                continue


def classes(*modules: ModuleType) -> set[str]:
    """The public classes that these modules define."""
    return {
        name
        for module in modules
        for name, one in vars(module).items()
        if inspect.isclass(one) and one.__module__ == module.__name__ and name.isidentifier()
        if not name.startswith("_")
    }


def public(*modules: Any, within: Callable[[Any], bool] = lambda _: True) -> set[str]:
    return {n for module in modules for n in module.__all__ if within(getattr(module, n))}


# -- packages that are installed -------------------------------------------------------------------


def the_sdk() -> Tables:
    import mcp
    import mcp.client
    import mcp.client.auth
    import mcp.client.auth.extensions.client_credentials as services
    import mcp.client.auth.extensions.identity_assertion as enterprise
    import mcp.client.session
    import mcp.client.streamable_http
    import mcp_types.jsonrpc
    from mcp.client.session_group import (
        ClientSessionParameters,
        SseServerParameters,
        StreamableHttpParameters,
    )
    from mcp.client.sse import sse_client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    def is_code(thing: Any) -> bool:
        return getattr(thing, "__module__", "").startswith("mcp.client")

    made = arguments(mcp.Client)
    methods = members(
        mcp.Client,
        arguments_of="call_tool complete get_prompt list_tools listen read_resource send_ping"
        " send_progress_notification set_logging_level subscribe_resource",
    )
    session = members(
        mcp.ClientSession,
        arguments_of="adopt call_tool dispatch_input_request list_tools send_discover"
        " send_notification",
    )
    session |= arguments(mcp.ClientSession) | arguments(mcp.ClientSession.send_request)
    group = members(mcp.ClientSessionGroup, arguments_of="connect_to_server connect_with_session")
    group |= arguments(mcp.ClientSessionGroup) | members(mcp.ClientSessionGroup)
    group |= {"disconnect_from_server"}
    transports = set().union(*map(arguments, (sse_client, stdio_client, streamable_http_client)))
    transports |= arguments(mcp.StdioServerParameters)
    for kind in (SseServerParameters, StreamableHttpParameters):
        transports |= keys(kind) | {kind.__name__}
    others = {n for n in public(mcp) if is_code(getattr(mcp, n))} | public(mcp.client)
    others |= {"MCPError", "MCPDeprecationWarning", "UrlElicitationRequiredError"}
    for module in modules_of(mcp.client):
        if not module.__name__.startswith("mcp.client.auth"):
            others |= set(getattr(module, "__all__", ()))
    others |= {name for name in vars(mcp.client.session) if name.endswith("FnT")}
    others |= classes(mcp.client.streamable_http)
    authorization = public(mcp.client.auth) | classes(services, enterprise)
    for name in {name for name in authorization if name.endswith("Provider")}:
        kind = getattr(mcp.client.auth, name, None) or getattr(services, name, None)
        authorization |= arguments(kind or getattr(enterprise, name))
    authorization |= arguments(services.SignedJWTParameters) | {"static_assertion_provider"}
    codes = {
        name: value
        for name, value in vars(mcp_types.jsonrpc).items()
        if name.isupper() and isinstance(value, int) and value < 0
    }
    return {
        "Client: what it is given": made,
        "Client: what it has": methods - made,
        "ClientSession": session - methods - made,
        "ClientSessionGroup": group - session | {ClientSessionParameters.__name__},
        "Transports": transports
        | names("sse_client stdio_client streamable_http_client StdioServerParameters")
        | {"get_default_environment"},
        "Other names": others - {"StdioServerParameters", "stdio_client", "listen"},
        "Authorization": authorization,
        "Error codes": set(codes) | {str(value) for value in codes.values()},
        "Commands": names("dev install run version"),
    }


def openai_agents() -> Tables:
    import agents
    import agents.mcp
    from agents.agent import MCPConfig
    from agents.mcp import (
        MCPServerManager,
        MCPServerSse,
        MCPServerSseParams,
        MCPServerStdio,
        MCPServerStdioParams,
        MCPServerStreamableHttp,
        MCPServerStreamableHttpParams,
        MCPUtil,
    )

    servers = (MCPServerSse, MCPServerStdio, MCPServerStreamableHttp)
    made = set().union(*map(arguments, servers))
    had = set().union(*map(members, servers), *map(attributes, servers)) - {"needs_approval"}
    had |= arguments(MCPServerStdio.call_tool) | arguments(MCPServerStdio.list_tools)
    had |= arguments(MCPServerStdio.read_resource) | arguments(MCPServerStdio.list_resources)
    had |= arguments(MCPServerStdio.get_prompt)
    params = (MCPServerSseParams, MCPServerStdioParams, MCPServerStreamableHttpParams)
    util = {"MCPUtil"} | {name for name in vars(MCPUtil) if not name.startswith("_")}
    util |= arguments(MCPUtil.get_all_function_tools) | arguments(MCPUtil.invoke_mcp_tool)
    util |= arguments(MCPUtil.get_function_tools) | arguments(MCPUtil.to_function_tool)
    shown = {"MCPServer", "MCPServerManager", "MCPUtil"}
    shown |= {kind.__name__ for kind in (*servers, *params)}
    raised = set[str]()
    for module in (agents.mcp.manager, agents.mcp.server, agents.mcp.util):
        raised |= set(re.findall(r"\braise (\w+)\(", inspect.getsource(module)))
    raised &= {"TypeError", "ValueError"} | classes(agents.exceptions)
    names = public(agents.mcp) - shown
    names |= {name for name in agents.__all__ if "mcp" in name.lower()}
    names |= arguments(agents.mcp.create_static_tool_filter)
    return {
        "MCPServerManager": arguments(MCPServerManager)
        | members(MCPServerManager, arguments_of="reconnect"),
        "Servers": {kind.__name__ for kind in (agents.mcp.MCPServer, *servers, *params)},
        "Params of a server": set().union(*map(keys, params)),
        "Servers: what they are given": made - {"params"},
        "Servers: what they have": had - made | {"name"},
        "mcp_config of an agent": keys(MCPConfig),
        "Functions and types": names | util,
        "Errors and the environment": raised - names
        | {"MCPError", "TimeoutError", "OPENAI_AGENTS_DONT_LOG_TOOL_DATA"},
    }


def fastmcp() -> Tables:
    import fastmcp
    import fastmcp.client
    import fastmcp.client.transports
    import fastmcp.exceptions
    from fastmcp.client.client import CallToolResult
    from fastmcp.client.group import ClientGroup
    from fastmcp.mcp_config import RemoteMCPServer, StdioMCPServer, TransformingStdioMCPServer

    client = fastmcp.Client
    made = arguments(client)
    had = members(
        client,
        arguments_of="call_tool call_tool_mcp cancel complete get_prompt initialize list_tools"
        " progress read_resource set_logging_level set_roots set_sampling_callback"
        " set_elicitation_callback list_resources_mcp",
    )
    transports = public(fastmcp.client.transports, within=lambda one: inspect.isclass(one)) - {
        "ClientTransport"
    }
    options = set[str]().union(
        *(arguments(getattr(fastmcp.client.transports, name)) for name in transports)
    )
    auth = {name for name in public(fastmcp.client) if "Auth" in name}
    given_to_auth = set[str]().union(*(arguments(getattr(fastmcp.client, n)) for n in auth))
    config = {"MCPConfig", "mcpServers"}
    for kind in (RemoteMCPServer, StdioMCPServer, TransformingStdioMCPServer):
        config |= set(kind.model_fields) | {kind.__name__}
    others = {n for n in classes(*modules_of(fastmcp.client)) if not n.endswith("Mixin")}
    others |= {"AnthropicSamplingHandler", "infer_transport", "name_as_prefix"}
    others |= {name for name in fastmcp.client.__all__ if name not in auth}
    others -= transports | auth | {"Client", "ClientGroup", "ClientTransport", "ClientSessionState"}
    settings = {f"FASTMCP_{name.upper()}" for name in type(fastmcp.settings).model_fields}
    return {
        "Client: what it is given": made,
        "Client: what it has": had - made,
        "Other names": others,
        "Results": members(CallToolResult) | keys(CallToolResult),
        "ClientGroup": {"ClientGroup"} | members(ClientGroup, arguments_of="from_config"),
        "Transports": transports | options - {"args"} | {"args", "ClientTransport"},
        "mcpServers": config,
        "Authorization": auth | given_to_auth,
        "Errors": {
            name
            for name, one in vars(fastmcp.exceptions).items()
            if inspect.isclass(one)
            and issubclass(one, Exception)
            and (one.__module__ == fastmcp.exceptions.__name__ or name.lower() == "mcperror")
        },
        "Environment": {name for name in settings if name.startswith("FASTMCP_CLIENT_")}
        | {"FASTMCP_LOG_LEVEL"},
        "Commands": names(
            """
            auth call dev discover generate-cli inspect install list login logout project run
            version whoami
            """
        ),
    }


def langchain_adapters() -> Tables:
    from langchain_core._api import suppress_langchain_beta_warning

    with suppress_langchain_beta_warning():
        import langchain.mcp
        import langchain.mcp.elicitation as elicitation

    asked = {name for name in vars(elicitation) if name.startswith("MCPE")}
    fields = set[str]().union(
        *(keys(kind) for name in asked if typing.is_typeddict(kind := getattr(elicitation, name)))
    )
    return {
        "MultiServerMCPClient": names(
            """
            MultiServerMCPClient connections callbacks tool_interceptors tool_name_prefix
            handle_tool_errors session server_name auto_initialize get_tools get_server_info
            get_prompt prompt_name arguments get_resources uris connection
            """
        ),
        "A connection": names(
            """
            StdioConnection SSEConnection StreamableHttpConnection WebsocketConnection
            McpHttpClientFactory Connection
            transport command args env cwd encoding encoding_error_handler session_kwargs url
            headers timeout sse_read_timeout httpx_client_factory auth terminate_on_close
            """
        ),
        "Functions": names(
            """
            load_mcp_tools convert_mcp_tool_to_langchain_tool to_fastmcp MCPToolArtifact
            structured_content load_mcp_prompt convert_mcp_prompt_message_to_langchain_message
            load_mcp_resources get_mcp_resource convert_mcp_resource_to_langchain_blob
            load_mcp_server_info create_session mcp_callbacks tool message name arguments
            resource_uri contents uri uris MCPToolCallResult ConvertedToolResult
            ToolMessageContentBlock
            """
        ),
        "Interceptors and callbacks": names(
            """
            ToolCallInterceptor MCPToolCallRequest name args server_name headers runtime override
            Callbacks CallbackContext tool_name on_logging_message on_progress on_elicitation
            to_mcp_format LoggingMessageCallback ProgressCallback ElicitationCallback
            """
        ),
        "langchain.mcp": public(langchain.mcp)
        | members(langchain.mcp.MCPAdapter, arguments_of="list_tools")
        | arguments(langchain.mcp.MCPAdapter)
        | {"ELICITATION_INTERRUPT_TYPE"}
        | asked
        | fields,
    }


def uipath() -> Tables:
    from uipath.agent.models.agent import (
        AgentMcpResourceConfig,
        AgentMcpTool,
        CachedToolsConfig,
        DynamicToolsConfig,
        ToolsConfiguration,
    )

    definition = set[str]()
    for model in (
        AgentMcpResourceConfig,
        AgentMcpTool,
        CachedToolsConfig,
        DynamicToolsConfig,
        ToolsConfiguration,
    ):
        definition |= set(model.model_fields) | {model.__name__}
    return {
        "Factories": names(
            """
            create_mcp_tools_and_clients open_mcp_tools create_mcp_tools load_mcp_tools
            resources config mcpClient session session_info_factory terminate_on_close
            protocol_mode
            create_mcp_tools_from_agent create_mcp_tools_from_metadata_for_mcp_server
            mcp_tool_identity resource_name tool_name ProtocolMode
            """
        ),
        "McpClient": names(
            """
            McpClient config timeout max_retries session_info_factory terminate_on_close
            protocol_mode server_slug get_session_id session_id is_client_initialized
            is_session_error SESSION_ERROR_CODES list_tools force_refresh call_tool name arguments
            dispose close SessionInfo set_session_id get_protocol_version set_protocol_version
            SessionInfoFactory create_session mcp_server protocol_version error
            """
        ),
        "A resource of the agent's definition": definition,
        "A tool's metadata": names("tool_type display_name folder_path slug resource_name"),
        "Errors and codes": names(
            "32600 -32600 -32000 -32001 AgentRuntimeError ValueError MCPError"
        ),
        "Environment and headers": names(
            """
            UIPATH_URL UIPATH_ACCESS_TOKEN UIPATH_FOLDER_PATH UIPATH_MCP_SERVER_URL
            UIPATH_DISABLE_SSL_VERIFY SSL_CERT_FILE REQUESTS_CA_BUNDLE SSL_CERT_DIR
            HTTP_PROXY HTTPS_PROXY NO_PROXY
            Authorization mcp-session-id mcp-protocol-version x-uipath-licensing-context
            """
        ),
    }


# -- systems that are not packages -----------------------------------------------------------------


def names(text: str) -> set[str]:
    return set(text.split())


def cortex_flow() -> Tables:
    return {
        "Variables": names(
            """
            MCP_ENABLE MCP_SERVER_<NAME>_TYPE MCP_SERVER_<NAME>_TRANSPORT MCP_SERVER_<NAME>_URL
            MCP_SERVER_<NAME>_LOCAL_PATH MCP_SERVER_<NAME>_API_KEY MCP_SERVER_<NAME>_ENABLED
            MCP_SERVER_<NAME>_TIMEOUT MCP_SERVER_<NAME>_PROMPTS_FILE
            MCP_SERVER_<NAME>_PROMPT_TOOL_ASSOCIATION MCP_CLIENT_RETRY_ATTEMPTS MCP_CLIENT_TIMEOUT
            MCP_HEALTH_CHECK_INTERVAL MCP_TOOLS_ENABLE_LOGGING MCP_TOOLS_ENABLE_REFLECTION
            MCP_TOOLS_TIMEOUT_MULTIPLIER SUPERVISOR_MCP_ENABLE SUPERVISOR_MCP_PATH
            SUPERVISOR_MCP_TRANSPORT
            """
        ),
        "mcp.json of a project": names(
            """
            enabled client servers tools_enable_logging tools_enable_reflection
            tools_timeout_multiplier retry_attempts timeout health_check_interval type transport url
            api_key local_path prompts_file prompt_tool_association test_results last_tested status
            MCPModel MCPClientConfig get_mcp_server get_enabled_mcp_servers
            """
        ),
        "MCPToolRegistry": names(
            """
            MCPToolRegistry health_check_timeout register_server unregister_server
            get_available_tools get_tool get_prompt get_available_prompts get_server_config
            get_all_servers health_check_all get_mcp_registry initialize_mcp_registry_from_config
            initialize_mcp_registry_from_project
            """
        ),
        "MCPServerConfig, MCPTool, MCPPrompt": names(
            """
            MCPServerConfig MCPServerType MCPTransportType REMOTE LOCAL STREAMABLE_HTTP SSE STDIO
            name server_type transport url api_key headers local_path module_name enabled timeout
            health_check_interval prompts_file prompt_tool_association status last_check tool_count
            MCPTool description input_schema server_name examples tags associated_prompt
            MCPPrompt MCPPromptArgument arguments content required
            """
        ),
        "MCPClient": names(
            """
            MCPClient retry_attempts timeout call_tool tool_name arguments server_name read_resource
            resource_uri create_langchain_tool_from_mcp mcp_tool client get_mcp_langchain_tools
            RuntimeError ValueError
            """
        ),
        "MCPServerTester": names(
            """
            MCPServerTester MCPTestResult server_config timeout success data error metadata
            test_connection list_resources read_resource uri list_resource_templates list_tools
            call_tool list_prompts get_prompt prompt_name get_completions ref argument reset_session
            run_comprehensive_mcp_tests update_server_test_results
            """
        ),
        "Workflows, and servers of its own": names(
            """
            mcp_tool mcp_resource tool_name params server_name resource_uri use_mcp_prompt
            MCPRequest MCPResponse HealthCheckResponse MCP_HOST MCP_PORT
            """
        ),
    }


def aether_frame() -> Tables:
    return {
        "tool_service": names(
            """
            tool_service enable_mcp enable_adk_native mcp_servers
            ENABLE_TOOL_SERVICE ENABLE_MCP_TOOLS ENABLE_ADK_NATIVE_TOOLS MCP_SERVERS
            """
        ),
        "MCPServerConfig": names(
            """
            MCPServerConfig name endpoint headers timeout max_connect_retries retry_backoff_seconds
            retry_attempts connection_pool_size health_check_interval to_dict from_dict
            """
        ),
        "ToolService": names(
            """
            ToolService initialize register_tool execute_tool execute_tool_stream list_tools
            namespace get_tools_dict get_tool_schema get_tool_capabilities health_check shutdown
            """
        ),
        "ToolResolver": names(
            """
            ToolResolver ToolNotFoundError resolve_tools tool_names user_context
            list_available_tools namespace_filter
            """
        ),
        "MCPClient": names(
            """
            MCPClient connect disconnect start_connect ensure_connected is_connected discover_tools
            cursor call_tool call_tool_stream extra_headers supports_streaming MCPConnectionError
            MCPToolError stream_start progress_update complete_result error is_final
            """
        ),
        "Tools": names(
            """
            Tool MCPTool full_name execute execute_stream get_schema validate_parameters
            get_capabilities health_check initialize cleanup is_initialized EchoTool TimestampTool
            ChatLogTool echo timestamp chat_log StubProgressiveSearchTool progressive_search
            create_function_tools build_adk_agent
            """
        ),
        "UniversalTool": names(
            """
            UniversalTool name description parameters_schema namespace required_permissions
            supports_streaming metadata
            """
        ),
        "ToolRequest and its contexts": names(
            """
            ToolRequest tool_name tool_namespace parameters timeout metadata mcp_headers session_id
            UserContext user_id user_name session_token permissions roles restrictions preferences
            UserPermissions UserPreferences SessionContext conversation_id conversation_history
            session_state ExecutionContext execution_id trace_id framework_type execution_mode
            available_tools available_knowledge
            """
        ),
        "ToolResult": names(
            """
            ToolResult tool_name tool_namespace status result_data error_message error
            execution_time created_at metadata session_id ToolStatus SUCCESS ERROR TIMEOUT
            UNAUTHORIZED NOT_FOUND
            """
        ),
        "Error codes": names(
            """
            ErrorCode ErrorPayload build_error code message source details
            internal.error request.validation framework.unavailable framework.execution
            model.upstream stream.interrupted approval.timeout tool.not_declared tool.execution
            tool.invalid_parameters INTERNAL_ERROR REQUEST_VALIDATION FRAMEWORK_UNAVAILABLE
            FRAMEWORK_EXECUTION MODEL_UPSTREAM STREAM_INTERRUPTED APPROVAL_TIMEOUT
            TOOL_NOT_DECLARED TOOL_EXECUTION TOOL_PARAMETERS
            """
        ),
        "Headers": names(
            """
            X-AF-Session-ID X-AF-Conversation-ID X-AF-Execution-ID X-AF-Trace-ID X-AF-User-ID
            X-AF-User-Name X-AF-Session-Token X-AF-Permissions
            """
        ),
        "Commands": names(
            "list-tools test-tool test-streaming test-mcp-server debug-mcp-discovery help"
        ),
    }


PAGES: dict[str, Callable[[], Tables]] = {
    "migrate-from-uipath": uipath,
    "migrate-from-cortex-flow": cortex_flow,
    "migrate-from-aether-frame": aether_frame,
    "migrate-from-openai-agents": openai_agents,
    "migrate-from-fastmcp": fastmcp,
    "migrate-from-langchain-adapters": langchain_adapters,
    "migrate-from-the-sdk": the_sdk,
}
"""Each page, and the tables of names that it must have, whole."""
