"""The board as one HTML page that needs no network: `page`, and the files it is made of."""
