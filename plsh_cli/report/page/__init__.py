"""The report over runs: one page as HTML or Markdown, or their rows as CSV. It reads run folders only."""
