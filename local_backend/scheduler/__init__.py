"""Which job runs on which slots: the policy as pure functions, and the slots of this machine."""
