// The published adapter names libraries that it takes no function from (see README.md). This is all of each.
