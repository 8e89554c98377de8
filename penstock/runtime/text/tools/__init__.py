"""Tool calls as models write them: one table row a family, one parser that reads them all, one grammar that constrains them."""
