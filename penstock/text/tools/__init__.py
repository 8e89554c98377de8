"""Tool calls as models write them: one table row a family, a parser that reads any of them, a grammar that holds to them."""
