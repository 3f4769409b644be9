"""The same tools in every framework. Each adapter knows its own framework and no other adapter.

Import the one you need: `mainstay.adapters.langchain`, `.adk`, `.openai_agents`, `.pydantic_ai`,
`.uipath`. Each needs its extra: `mainstay[langchain]`, and so on.
"""
