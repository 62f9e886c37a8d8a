"""Which entries of the log are sent next, and which must wait.

Start with `order`: a region's entries, by its number, over all servers that had it. `stays` is the part of it on one
server, `regions` knows the regions and their rows, `repeated` recognizes what a failed sync wrote twice, and `sent`
records how far each region was sent.
"""
