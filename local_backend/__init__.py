"""The local backend: WMLA's REST contract, a scheduler for the devices of one machine, and an elastic engine."""
