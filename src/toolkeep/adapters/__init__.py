"""The same tools in every framework. Each adapter knows its own framework and no other adapter.

Import the one you need: `toolkeep.adapters.langchain`, `.adk`, `.openai_agents`, `.pydantic_ai`,
`.uipath`. Each needs its extra: `toolkeep[langchain]`, and so on.
"""
