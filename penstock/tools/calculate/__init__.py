"""Calculators: a question of the trade, inputs as flags or fields, an answer as plain data that says where numbers come from.

Formulas live in `planner/figures.py`, shapes in `models/catalog.py`, devices in `cost/hardware.py`; here they meet. Nothing
here prints, simulates or measures.
"""
