-- Loading what requests may look at: with locks, to decide on it, or without, to look.

SET LOCAL ROLE symphony_owner;

-- What is asked for, as rows of one form. `what` says which:
--   owner   available, held, open_holds, last_offset, entries, last_at; body is the end of the owner's chain
--   payee   balance, last_offset, entries
--   budget  day, today, total, last_offset
--   life    an entry of a life that was asked for, by offset; body is the entry
--   key     the entry that a key made; body is the entry
--   moment  the moment
-- With a life come its owner and its budgets. All of it is of one moment.
CREATE FUNCTION holdfast.ledger_look(
    owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH life AS MATERIALIZED (
        SELECT found.life, found.owner, found.budgets, found.records
          FROM unnest(ledger_look.lives) AS named (life)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_lives AS known WHERE known.life = named.life LIMIT 1) AS found
    )
    SELECT 'owner', found.owner,
           ARRAY[found.available, found.held, found.open_holds, found.last_offset, found.entries, found.last_at], found.chain
      FROM (SELECT unnest(ledger_look.owners) COLLATE "C" UNION SELECT life.owner FROM life) AS named (owner)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_owners AS known WHERE known.owner = named.owner LIMIT 1) AS found
    UNION ALL
    SELECT 'payee', found.payee, ARRAY[found.balance, found.last_offset, found.entries], NULL
      FROM unnest(ledger_look.payees) AS named (payee)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_payees AS known WHERE known.payee = named.payee LIMIT 1) AS found
    UNION ALL
    SELECT 'budget', found.budget, ARRAY[found.day, found.today, found.total, found.last_offset], NULL
      FROM (SELECT unnest(ledger_look.budgets) COLLATE "C" UNION SELECT unnest(life.budgets) FROM life) AS named (budget)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_budgets AS known WHERE known.budget = named.budget LIMIT 1) AS found
    UNION ALL
    SELECT 'life', life.life, ARRAY[found.entry_offset], found.body
      FROM life CROSS JOIN LATERAL unnest(life.records) AS record (entry_offset)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known
                          WHERE known.entry_offset = record.entry_offset LIMIT 1) AS found
    UNION ALL
    SELECT 'key', found.key, ARRAY[found.entry_offset], found.body
      FROM unnest(ledger_look.keys) AS named (key)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known WHERE known.key = named.key LIMIT 1) AS found
    UNION ALL
    SELECT 'moment', '', ARRAY[(extract(epoch FROM clock_timestamp()) * 1000)::bigint], NULL;
END
$$;

-- The same, locked until the transaction ends: owners first, then payees, then budgets, each in the order of their names, so that
-- two nodes never wait for each other in a circle. Whoever moves a life, a balance or a budget holds these locks. One row more:
--   block   the first of 8,192 offsets that are this batch's alone
-- and one for each of `in_doubt`, offsets of earlier batches whose commit was not answered, that is there after all:
--   done    the offset
-- Whoever wrote them held the same locks, so by now it has ended, one way or the other.
CREATE FUNCTION holdfast.ledger_open(
    owners text[], lives text[], keys text[], payees text[], budgets text[], in_doubt bigint[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    -- Whose a life is, and what it counts against, never changes: this needs no lock.
    PERFORM FROM holdfast.ledger_owners AS locked
      WHERE locked.owner = ANY (ARRAY(
            SELECT unnest(ledger_open.owners) COLLATE "C"
            UNION SELECT found.owner FROM holdfast.ledger_lives AS found WHERE found.life = ANY (ledger_open.lives)))
      ORDER BY locked.owner FOR NO KEY UPDATE;
    IF cardinality(ledger_open.payees) > 0 THEN
        PERFORM FROM holdfast.ledger_payees AS locked
          WHERE locked.payee = ANY (ledger_open.payees) ORDER BY locked.payee FOR NO KEY UPDATE;
    END IF;
    PERFORM FROM holdfast.ledger_budgets AS locked
      WHERE locked.budget = ANY (ARRAY(
            SELECT unnest(ledger_open.budgets) COLLATE "C"
            UNION SELECT unnest(found.budgets) FROM holdfast.ledger_lives AS found WHERE found.life = ANY (ledger_open.lives)))
      ORDER BY locked.budget FOR NO KEY UPDATE;

    -- A statement of its own sees what was committed while it was waited for the locks.
    RETURN QUERY SELECT * FROM holdfast.ledger_look(
        ledger_open.owners, ledger_open.lives, ledger_open.keys, ledger_open.payees, ledger_open.budgets);
    RETURN QUERY SELECT 'block', '', ARRAY[nextval('holdfast.ledger_blocks') * 8192], NULL::bytea;
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], NULL::bytea
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_look(text[], text[], text[], text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]) FROM PUBLIC;
