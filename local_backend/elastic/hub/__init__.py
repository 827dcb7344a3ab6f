"""The decisions of a job: pure functions of a state and an event."""
