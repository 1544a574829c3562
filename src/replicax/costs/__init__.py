"""What a step sends, keeps and computes, told from its program without running it."""
