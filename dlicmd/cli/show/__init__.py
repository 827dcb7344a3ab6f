"""Output for people: tables, trees, charts, and the live view."""
