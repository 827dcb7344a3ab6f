"""The REST contract: routers, one file per topic, behind one guard."""
