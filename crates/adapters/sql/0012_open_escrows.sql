-- Open escrows are listed, to find those that nothing was queued for: without reading every life there ever was.
CREATE INDEX ledger_lives_escrowed ON holdfast.ledger_lives (life) WHERE expires_at IS NULL AND held > 0;
