"""The REST contract: routers, one file per part of it, behind one guard."""
