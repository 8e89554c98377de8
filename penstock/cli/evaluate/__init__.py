"""`penstock eval`: a model measured on a text, on questions, beside another; reports compared."""
