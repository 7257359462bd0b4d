"""One reader of other people's metrics pages, which trusts none of them."""
