"""Schema versions of the database, in Alembic's form; `upgrade.py` applies them."""
