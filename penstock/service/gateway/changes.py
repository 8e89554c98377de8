"""A number that grows with every change of keys, budgets and rules, so that gateways look at all of them only when there is
something new: each asks for the number several times a second.
"""

from penstock.service.store.database import Transaction


def note_change(transaction: Transaction) -> None:
    """In the transaction that changes something."""
    transaction.run(
        "INSERT INTO changes (name, number) VALUES ('all', 1) "
        "ON CONFLICT (name) DO UPDATE SET number = changes.number + 1"
    )


def change_number(transaction: Transaction) -> int:
    rows = transaction.rows("SELECT number FROM changes WHERE name = 'all'")
    return int(rows[0][0]) if rows else 0
