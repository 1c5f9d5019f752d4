"""Reads a corpus as training would, and tells what it would fail on, leave out or learn wrong.

kinds       what can be found, and how bad each of it is
reading     the files, line by line, in constant memory
texts       what is odd about one text
columns     a few numbers of every line: enough to find duplicates, leaks and slips
slips       where the lines of the two sides stop belonging together
characters  what the vocabulary misses
checking    all of that over the splits of a corpus
report      what was found, as JSON and as text
fix         a cleaned copy
"""
