"""What the experiments share: cells and studies, how they are run, their results, and the report."""
