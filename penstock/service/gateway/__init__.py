"""Who may ask for how much: keys, tenants, limits, budgets in money, prices, aliases of models, usage.

Decides on values; time is an argument; state that must outlive the process is in the store. Knows no HTTP and no replica.
"""
