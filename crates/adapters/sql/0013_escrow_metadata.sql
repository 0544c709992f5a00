-- What callers say about their escrows: a JSON object, which nobody here reads. It is written before its escrow is held, and
-- stays; one whose hold was refused has no escrow.

SET LOCAL ROLE symphony_owner;

CREATE TABLE holdfast.ledger_escrow_metadata (
    escrow   text COLLATE "C" PRIMARY KEY CHECK (octet_length(escrow) BETWEEN 1 AND 64),
    metadata text NOT NULL CHECK (octet_length(metadata) BETWEEN 2 AND 4096)
);
COMMENT ON TABLE holdfast.ledger_escrow_metadata IS 'What callers said about their escrows.';

-- Keeps what is said of an escrow, unless something is kept already and this is not `instead` of it. Says whether it did.
CREATE FUNCTION holdfast.ledger_put_metadata(escrow text, metadata text, instead boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO holdfast.ledger_escrow_metadata AS known (escrow, metadata)
    VALUES (ledger_put_metadata.escrow, ledger_put_metadata.metadata)
    ON CONFLICT (escrow) DO UPDATE SET metadata = excluded.metadata WHERE ledger_put_metadata.instead;
    RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION holdfast.ledger_put_metadata(text, text, boolean) FROM PUBLIC;

GRANT EXECUTE ON FUNCTION holdfast.ledger_put_metadata(text, text, boolean) TO symphony_ledger;
GRANT SELECT ON holdfast.ledger_escrow_metadata TO symphony_ledger, symphony_auditor;
