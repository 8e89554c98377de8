"""What is owed: prices, budgets, usage, what is billed later, and the way of all of it to the database."""
