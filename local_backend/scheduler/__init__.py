"""The scheduling policy, as pure functions that assign slots to jobs, and the slots of this machine."""
