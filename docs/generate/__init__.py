"""What the site says that is written nowhere but in the code and in the results: pages and tables as Markdown."""
