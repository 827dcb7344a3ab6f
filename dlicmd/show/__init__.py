"""What people see: tables, trees, charts, and the live view."""
