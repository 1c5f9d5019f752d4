"""Where training text comes from: `phrases` makes the embedded corpus, `files` reads the user's."""
