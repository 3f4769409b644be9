"""Adapters: the tools of a runtime in agent frameworks. Each adapter imports only its framework.

Import the one you need: `toolkeep.adapters.langchain`, `.adk`, `.openai_agents`, `.pydantic_ai`,
`.uipath`. Each needs its extra: `toolkeep[langchain]`, and so on.
"""
