-- Whose batch it is that stands where one in doubt would: the place alone does not say. A database that crashed gives the numbers of
-- a sequence again that no commit had made durable, and so the offsets of a batch that was lost may be another's.
--
-- As before (0016), with one row more told:
--   done    an offset of `in_doubt` that is there; body is the chain at it

SET LOCAL ROLE symphony_owner;

CREATE OR REPLACE FUNCTION holdfast.ledger_open(
    owners text[], lives text[], keys text[], payees text[], budgets text[], in_doubt bigint[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    of_lives    record;
    all_owners  text[] := ledger_open.owners;
    all_budgets text[] := ledger_open.budgets;
BEGIN
    IF cardinality(ledger_open.lives) > 0 THEN
        of_lives := holdfast.ledger_of_lives(ledger_open.lives);
        all_owners := all_owners || of_lives.owners;
        all_budgets := all_budgets || of_lives.budgets;
    END IF;
    RETURN QUERY
        SELECT 'owner', locked.owner,
               ARRAY[locked.available, locked.held, locked.open_holds, locked.last_offset, locked.entries, locked.last_at,
                     cardinality(locked.recent)],
               locked.chain, locked.ctid
          FROM holdfast.ledger_owners AS locked
         WHERE locked.owner = ANY (all_owners) ORDER BY locked.owner FOR NO KEY UPDATE;
    IF cardinality(ledger_open.payees) > 0 THEN
        RETURN QUERY
            SELECT 'payee', locked.payee, ARRAY[locked.balance, locked.last_offset, locked.entries], NULL::bytea, NULL::tid
              FROM holdfast.ledger_payees AS locked
             WHERE locked.payee = ANY (ledger_open.payees) ORDER BY locked.payee FOR NO KEY UPDATE;
    END IF;
    IF cardinality(all_budgets) > 0 THEN
        RETURN QUERY
            SELECT 'budget', locked.budget, ARRAY[locked.day, locked.today, locked.total, locked.last_offset],
                   NULL::bytea, NULL::tid
              FROM holdfast.ledger_budgets AS locked
             WHERE locked.budget = ANY (all_budgets) ORDER BY locked.budget FOR NO KEY UPDATE;
    END IF;

    -- Statements of their own see what was committed while it was waited for the locks.
    IF cardinality(ledger_open.lives) > 0 OR cardinality(ledger_open.keys) > 0 THEN
        RETURN QUERY SELECT found.what, found.name, found.numbers, found.body, NULL::tid
          FROM holdfast.ledger_rows('{}', ledger_open.lives, ledger_open.keys, '{}', '{}') AS found
         WHERE found.what <> 'moment';
    END IF;
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], entry.chain, NULL::tid
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
    what := 'block';
    name := '';
    numbers := ARRAY[nextval('holdfast.ledger_blocks') * 8192, (extract(epoch FROM clock_timestamp()) * 1000)::bigint];
    RETURN NEXT;
END
$$;
