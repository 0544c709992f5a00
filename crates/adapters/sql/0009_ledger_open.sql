-- Loading what requests may look at: with locks, to decide on it, or without, to look.

SET LOCAL ROLE symphony_owner;

-- Whose these lives are, and what they count against: neither ever changes.
CREATE FUNCTION holdfast.ledger_of_lives(lives text[], OUT owners text[], OUT budgets text[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    counts boolean;
BEGIN
    owners := '{}';
    budgets := '{}';
    IF cardinality(ledger_of_lives.lives) > 0 THEN
        SELECT coalesce(array_agg(found.owner), '{}'), coalesce(bool_or(cardinality(found.budgets) > 0), false)
          INTO owners, counts
          FROM unnest(ledger_of_lives.lives) AS named (life)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_lives AS known WHERE known.life = named.life LIMIT 1) AS found;
        IF counts THEN
            SELECT array_agg(counted.budget) INTO budgets
              FROM unnest(ledger_of_lives.lives) AS named (life)
             CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_lives AS known WHERE known.life = named.life LIMIT 1) AS found
             CROSS JOIN LATERAL unnest(found.budgets) AS counted (budget);
        END IF;
    END IF;
END
$$;

-- What is asked for, as rows of one form. `what` says which:
--   owner   available, held, open_holds, last_offset, entries, last_at; body is the end of the owner's chain
--   payee   balance, last_offset, entries
--   budget  day, today, total, last_offset
--   life    an entry of a life that was asked for, by offset; body is the entry
--   key     the entry that a key made; body is the entry
--   moment  the moment
-- What is not asked for costs nothing: most rounds have few kinds of things in them.
CREATE FUNCTION holdfast.ledger_rows(owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(ledger_rows.owners) > 0 THEN
        RETURN QUERY
        SELECT 'owner', found.owner,
               ARRAY[found.available, found.held, found.open_holds, found.last_offset, found.entries, found.last_at],
               found.chain
          FROM (SELECT DISTINCT unnest(ledger_rows.owners) COLLATE "C") AS named (owner)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_owners AS known WHERE known.owner = named.owner LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.lives) > 0 THEN
        RETURN QUERY
        SELECT 'life', found.life, ARRAY[entry.entry_offset], entry.body
          FROM unnest(ledger_rows.lives) AS named (life)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_lives AS known WHERE known.life = named.life LIMIT 1) AS found
         CROSS JOIN LATERAL unnest(found.records) AS record (entry_offset)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = record.entry_offset LIMIT 1) AS entry;
    END IF;
    IF cardinality(ledger_rows.keys) > 0 THEN
        RETURN QUERY
        SELECT 'key', found.key, ARRAY[found.entry_offset], found.body
          FROM unnest(ledger_rows.keys) AS named (key)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known WHERE known.key = named.key LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.payees) > 0 THEN
        RETURN QUERY
        SELECT 'payee', found.payee, ARRAY[found.balance, found.last_offset, found.entries], NULL::bytea
          FROM unnest(ledger_rows.payees) AS named (payee)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_payees AS known WHERE known.payee = named.payee LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.budgets) > 0 THEN
        RETURN QUERY
        SELECT 'budget', found.budget, ARRAY[found.day, found.today, found.total, found.last_offset], NULL::bytea
          FROM (SELECT DISTINCT unnest(ledger_rows.budgets) COLLATE "C") AS named (budget)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_budgets AS known WHERE known.budget = named.budget LIMIT 1) AS found;
    END IF;
    RETURN QUERY VALUES ('moment', '', ARRAY[(extract(epoch FROM clock_timestamp()) * 1000)::bigint], NULL::bytea);
END
$$;

-- What is asked for, and with each life its owner and its budgets: all of one moment.
CREATE FUNCTION holdfast.ledger_look(owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    of_lives record := holdfast.ledger_of_lives(ledger_look.lives);
BEGIN
    RETURN QUERY SELECT * FROM holdfast.ledger_rows(ledger_look.owners || of_lives.owners, ledger_look.lives,
        ledger_look.keys, ledger_look.payees, ledger_look.budgets || of_lives.budgets);
END
$$;

-- The same, locked until the transaction ends: owners first, then payees, then budgets, each in the order of their names, so that
-- two nodes never wait for each other in a circle. Whoever moves a life, a balance or a budget holds these locks. Two rows more:
--   block   the first of 8,192 offsets that are this batch's alone
--   locked  how many owners, payees and budgets are locked. One that was made while the locks were waited for is among the rows and
--           not locked: whoever sees more rows than locks must begin again, or two could wait for each other after all
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
DECLARE
    of_lives    record := holdfast.ledger_of_lives(ledger_open.lives);
    all_owners  text[] := ledger_open.owners || of_lives.owners;
    all_budgets text[] := ledger_open.budgets || of_lives.budgets;
    of_owners   bigint := 0;
    of_payees   bigint := 0;
    of_budgets  bigint := 0;
BEGIN
    PERFORM FROM holdfast.ledger_owners AS locked
      WHERE locked.owner = ANY (all_owners) ORDER BY locked.owner FOR NO KEY UPDATE;
    GET DIAGNOSTICS of_owners = ROW_COUNT;
    IF cardinality(ledger_open.payees) > 0 THEN
        PERFORM FROM holdfast.ledger_payees AS locked
          WHERE locked.payee = ANY (ledger_open.payees) ORDER BY locked.payee FOR NO KEY UPDATE;
        GET DIAGNOSTICS of_payees = ROW_COUNT;
    END IF;
    IF cardinality(all_budgets) > 0 THEN
        PERFORM FROM holdfast.ledger_budgets AS locked
          WHERE locked.budget = ANY (all_budgets) ORDER BY locked.budget FOR NO KEY UPDATE;
        GET DIAGNOSTICS of_budgets = ROW_COUNT;
    END IF;

    -- A statement of its own sees what was committed while it was waited for the locks.
    RETURN QUERY SELECT * FROM holdfast.ledger_rows(
        all_owners, ledger_open.lives, ledger_open.keys, ledger_open.payees, all_budgets);
    RETURN QUERY VALUES ('block', '', ARRAY[nextval('holdfast.ledger_blocks') * 8192], NULL::bytea),
                        ('locked', '', ARRAY[of_owners, of_payees, of_budgets], NULL::bytea);
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], NULL::bytea
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_of_lives(text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_rows(text[], text[], text[], text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_look(text[], text[], text[], text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]) FROM PUBLIC;
