"""What several methods share: how clients are compared, and how clusters start, split, merge and are joined."""
