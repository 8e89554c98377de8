"""Parts of offline use: completions as they grow, perplexity.

`penstock.LLM` joins them to an engine in this process. Knows no HTTP and no command.
"""
