"""Examples that the site tells of: real data beyond images, each a script with its results."""
