"""Facts about mcp_types that toolkeep stands on, in every version of its range. When one fails, its
docstring says where. Needs no `mcp`."""

import inspect
from typing import Any

import mcp_types as types
import pytest
from mcp_types import methods, version
from pydantic import TypeAdapter, ValidationError

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TOOL = {"name": "add", "inputSchema": {"type": "object"}}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"extensions": {"x.example/a": {"b": 1}}},
    "serverInfo": {"name": "kit", "version": "1"},
}


def test_the_versions_of_both_eras_from_oldest_to_newest() -> None:
    """`_client/session.py` takes the last common one; `_transport/jsonrpc.py` and
    `_doctor/protocol.py` tell the eras apart; `auth/discovery.py` sends the latest."""
    assert version.HANDSHAKE_PROTOCOL_VERSIONS == LEGACY
    assert version.MODERN_PROTOCOL_VERSIONS == (MODERN,)
    assert (*LEGACY, MODERN) == version.KNOWN_PROTOCOL_VERSIONS
    assert LEGACY[-1] == version.LATEST_HANDSHAKE_VERSION
    assert version.LATEST_MODERN_VERSION == version.LATEST_PROTOCOL_VERSION == MODERN


def test_the_codes_and_keys() -> None:
    """`_client/session.py` and `_transport/*.py` send them; `_rules/classify.py` writes some as
    numbers."""
    codes = types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.INVALID_PARAMS
    assert (*codes, types.INTERNAL_ERROR) == (-32600, -32601, -32602, -32603)
    assert types.UNSUPPORTED_PROTOCOL_VERSION == -32022
    prefix = "io.modelcontextprotocol/"
    assert prefix + "protocolVersion" == types.PROTOCOL_VERSION_META_KEY
    assert prefix + "clientInfo" == types.CLIENT_INFO_META_KEY
    assert prefix + "clientCapabilities" == types.CLIENT_CAPABILITIES_META_KEY


@pytest.mark.parametrize(
    ("table", "method", "known"),
    [
        (methods.SERVER_RESULTS, "initialize", LEGACY),
        (methods.SERVER_RESULTS, "tools/call", (*LEGACY, MODERN)),
        (methods.SERVER_RESULTS, "tools/list", (*LEGACY, MODERN)),
        (methods.SERVER_RESULTS, "prompts/get", (*LEGACY, MODERN)),
        (methods.SERVER_RESULTS, "resources/read", (*LEGACY, MODERN)),
        (methods.SERVER_RESULTS, "completion/complete", (*LEGACY, MODERN)),
        (methods.SERVER_RESULTS, "server/discover", (MODERN,)),
        (methods.SERVER_RESULTS, "ping", LEGACY),
        (methods.SERVER_NOTIFICATIONS, "notifications/tools/list_changed", (*LEGACY, MODERN)),
        (methods.SERVER_NOTIFICATIONS, "notifications/resources/updated", (*LEGACY, MODERN)),
        (methods.SERVER_NOTIFICATIONS, "notifications/elicitation/complete", LEGACY[3:]),
        (methods.SERVER_NOTIFICATIONS, "notifications/subscriptions/acknowledged", (MODERN,)),
        (methods.CLIENT_NOTIFICATIONS, "notifications/initialized", LEGACY),
        (methods.CLIENT_NOTIFICATIONS, "notifications/roots/list_changed", LEGACY),
        (methods.SERVER_REQUESTS, "ping", LEGACY),
        (methods.SERVER_REQUESTS, "roots/list", LEGACY),
        (methods.SERVER_REQUESTS, "sampling/createMessage", LEGACY),
        (methods.SERVER_REQUESTS, "elicitation/create", LEGACY[2:]),
        (methods.SERVER_REQUESTS, "notifications/tasks/status", ()),
    ],
)
def test_which_version_defines_which_method(table: Any, method: str, known: Any) -> None:
    """`ProtocolSession` checks what is in these tables, and passes or refuses the rest."""
    assert tuple(one for one in (*LEGACY, MODERN) if (method, one) in table) == known


@pytest.mark.parametrize(
    "function",
    [
        methods.parse_server_notification,
        methods.parse_server_request,
        methods.validate_client_result,
        methods.validate_server_result,
    ],
)
def test_the_functions_take_method_version_and_data(function: Any) -> None:
    """`_client/session.py` calls them so, and reads `KeyError` as "not in this version"."""
    assert list(inspect.signature(function).parameters)[:2] == ["method", "version"]
    with pytest.raises(KeyError):
        function("x.example/unknown", LEGACY[-1], {})
    with pytest.raises(ValueError, match="version"):
        function("ping", "1999-01-01", {})


def test_malformed_data_is_a_validation_error() -> None:
    """`ProtocolSession` turns it into `InvalidResponse`, -32602, -32603 or a dropped message."""
    with pytest.raises(ValidationError):
        methods.parse_server_notification("notifications/resources/updated", MODERN, {"uri": 7})
    with pytest.raises(ValidationError):
        methods.parse_server_request("elicitation/create", LEGACY[-1], {})
    with pytest.raises(ValidationError):
        methods.validate_client_result("roots/list", LEGACY[-1], {"roots": 7})
    with pytest.raises(ValidationError):
        methods.validate_server_result("tools/list", LEGACY[-1], {"tools": [{"name": "x"}]})


def test_a_request_of_a_server_has_params_with_the_protocols_names() -> None:
    """`ProtocolSession.on_request` dumps them for the handler."""
    asked = {"messages": [], "maxTokens": 5}
    found = methods.parse_server_request("sampling/createMessage", LEGACY[-1], asked)
    dumped = found.params.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert asked.items() <= dumped.items()
    assert methods.parse_server_request("roots/list", LEGACY[-1], None).params is None


def test_a_handshake_keeps_extensions_and_refuses_python_names() -> None:
    """`_client/session.py`: `handshake.capabilities.extensions`, and `by_name=False`."""
    found = types.InitializeResult.model_validate(INITIALIZED, by_name=False)
    assert found.capabilities.extensions == {"x.example/a": {"b": 1}}
    assert found.protocol_version == "2025-11-25"
    with pytest.raises(ValidationError):
        types.InitializeResult.model_validate(
            {"protocol_version": "2025-11-25", "capabilities": {}, "server_info": {}},
            by_name=False,
        )


def test_a_discovery_has_versions_and_capabilities() -> None:
    """`ProtocolSession._adopt_discovery`."""
    raw = {"supportedVersions": [MODERN], "capabilities": INITIALIZED["capabilities"]}
    found = types.DiscoverResult.model_validate(raw, by_name=False)
    assert found.supported_versions == [MODERN]
    assert found.capabilities.extensions == {"x.example/a": {"b": 1}}
    with pytest.raises(ValidationError):
        types.DiscoverResult.model_validate({**raw, "ttlMs": -1})  # why `_normalize` is needed


def test_a_malformed_modern_call_result_passes_its_table() -> None:
    """`check_call_slice` uses `CallToolResult` for a complete one. When this fails, that can go."""
    raw = {"content": "no list", "resultType": "complete"}
    table: Any = methods.SERVER_RESULTS["tools/call", MODERN]
    TypeAdapter(table).validate_python(raw, by_name=False)
    with pytest.raises(ValidationError):
        types.CallToolResult.model_validate(raw, by_name=False)


@pytest.mark.parametrize("one", [*LEGACY, MODERN])
def test_a_call_result_may_hold_kinds_of_its_own_fields(one: str) -> None:
    """`content_slices` checks parts, and `CallResult.raw` keeps fields that no version defines."""
    raw = {"content": [{"type": "text", "text": "x", "new": 1}], "x-new": [1]}
    raw |= {"resultType": "complete"} if one == MODERN else {}
    methods.validate_server_result("tools/call", one, raw)
    if one != MODERN:
        with pytest.raises(ValidationError):
            methods.validate_server_result("tools/call", one, {"content": [{"type": "novel"}]})


def test_an_absent_result_type_is_refused_by_the_modern_table() -> None:
    """Why `parse_result` (`_transport/jsonrpc.py`) adds it."""
    with pytest.raises(ValidationError):
        methods.validate_server_result(
            "completion/complete", MODERN, {"completion": {"values": []}}
        )


def test_a_subscription_filter_is_optional_in_all_fields() -> None:
    """`ProtocolSession._acknowledge`."""
    assert types.SubscriptionFilter.model_validate({}).resource_subscriptions is None
    found = types.SubscriptionFilter.model_validate({"resourceSubscriptions": ["a"]}, by_name=False)
    assert found.resource_subscriptions == ["a"]


def test_the_models_that_users_get() -> None:
    """`client.py`, `runtime.py`, `_catalogue/*.py` `_runtime/builtin.py` use them."""
    tool = types.Tool.model_validate({**TOOL, "_meta": {"a": 1}, "execution": {}})
    assert (tool.name, tool.input_schema) == ("add", {"type": "object"})
    text = types.TextContent(type="text", text="x")
    assert types.PromptMessage(role="user", content=text).role == "user"
    assert types.ToolAnnotations(read_only_hint=True, open_world_hint=False).read_only_hint
    for name in (
        *("CallToolResult", "CompleteResult", "Completion", "ContentBlock", "GetPromptResult"),
        *("ListPromptsResult", "ListResourcesResult", "ListResourceTemplatesResult", "Prompt"),
        *("PromptArgument", "PromptReference", "ReadResourceResult", "Resource"),
        *("ResourceTemplate", "ResourceTemplateReference", "RequestId"),
    ):
        assert hasattr(types, name), name


def test_the_models_of_answers() -> None:
    """`_client/server_requests.py:_to_result`."""
    assert types.ElicitResult(action="decline").action == "decline"
    assert types.ErrorData(code=-1, message="x").data is None
    answer = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
    assert types.CreateMessageResult.model_validate(answer).model == "m"
    assert types.CreateMessageResultWithTools.model_validate({**answer, "content": []})
    assert types.ListRootsResult.model_validate({"roots": [{"uri": "file:///a"}]}).roots
    with pytest.raises(ValidationError):
        types.ListRootsResult.model_validate({"roots": [{"uri": 7}]})


def test_a_client_is_named_without_its_empty_fields() -> None:
    """`ProtocolSession.__init__`."""
    dumped = types.Implementation(name="a", version="1").model_dump(
        by_alias=True, mode="json", exclude_none=True
    )
    assert dumped == {"name": "a", "version": "1"}
