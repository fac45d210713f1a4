"""`nnstretch report`: files of nnstretch and Optuna become documents, and these become pages, Markdown, CSV or pictures."""
