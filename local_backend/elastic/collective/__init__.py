"""Exchange of tensors between workers, and sums that do not depend on their number."""
