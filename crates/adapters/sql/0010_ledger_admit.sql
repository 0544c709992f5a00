-- Admitting what was decided: all of it or nothing.

SET LOCAL ROLE symphony_owner;

-- An entry, and how it leaves its life.
CREATE TYPE holdfast.ledger_new_entry AS (
    entry_offset bigint, at bigint, kind text, owner text, life text, key text, payee text,
    available bigint, held bigint, escrow bigint, paid bigint, revenue bigint, treasury bigint,
    body bytea, chain bytea,
    -- The last entry that was seen of its owner and of its payee when this batch was decided; 0 for those who are new.
    owner_seen bigint, payee_seen bigint,
    -- The life: its entry before this one (NULL if this begins it), how many holds this opens (1) or ends (-1), and what it is now.
    life_previous bigint, opens integer, state text, life_held bigint, expires_at bigint, budgets text[]);
CREATE TYPE holdfast.ledger_new_budget AS (budget text, seen bigint, day bigint, today bigint, total bigint);
-- What the peer is to be told: see enqueue_payment_outbox.
CREATE TYPE holdfast.ledger_obligation AS (charge text, owner text, idempotency_key text, payload text);

-- Admits entries that were decided on what ledger_open gave, in the same transaction. Each guard is checked; one that does not
-- hold, because somebody has been there without the locks, refuses all of it (P7101), and nothing is written.
CREATE FUNCTION holdfast.ledger_admit(
    entries holdfast.ledger_new_entry[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[])
RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    expected integer;
    found_   integer;
BEGIN
    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain
      FROM unnest(ledger_admit.entries) AS new
     -- In one order for all nodes: keys are locked as they are written.
     ORDER BY new.key NULLS LAST, new.entry_offset;

    -- Owners.
    WITH moved AS MATERIALIZED (
        SELECT new.owner AS name, min(new.owner_seen) AS seen,
               sum(new.available)::bigint AS available, sum(new.held)::bigint AS held, sum(new.escrow)::bigint AS escrow,
               sum(new.paid)::bigint AS paid, sum(new.revenue)::bigint AS revenue, sum(new.treasury)::bigint AS treasury,
               sum(new.opens)::integer AS opens, count(*) AS entries, max(new.entry_offset) AS last_offset,
               max(new.at) AS last_at, (array_agg(new.chain ORDER BY new.entry_offset DESC))[1] AS chain
          FROM unnest(ledger_admit.entries) AS new
         GROUP BY new.owner
    ), changed AS (
        UPDATE holdfast.ledger_owners AS owner
           SET available = owner.available + moved.available, held = owner.held + moved.held,
               escrowed = owner.escrowed + moved.escrow, paid = owner.paid + moved.paid,
               revenue = owner.revenue + moved.revenue, treasury = owner.treasury + moved.treasury,
               open_holds = owner.open_holds + moved.opens, entries = owner.entries + moved.entries,
               last_offset = moved.last_offset, last_at = moved.last_at, chain = moved.chain
          FROM moved
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_owners AS known
                              WHERE known.owner = moved.name AND known.last_offset = moved.seen LIMIT 1) AS found
         WHERE owner.ctid = found.place
        RETURNING 1
    ), made AS (
        INSERT INTO holdfast.ledger_owners
        SELECT moved.name, moved.available, moved.held, moved.escrow, moved.paid, moved.revenue, moved.treasury, moved.opens,
               moved.entries, moved.last_offset, moved.last_at, moved.chain
          FROM moved WHERE moved.seen = 0 ORDER BY moved.name COLLATE "C"
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM changed) + (SELECT count(*) FROM made) INTO expected, found_;
    IF expected <> found_ THEN
        RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
    END IF;

    -- Lives: the first entry of each makes it, the others move it on from the entry that they name.
    WITH moved AS MATERIALIZED (
        SELECT new.life, min(new.owner) AS owner,
               (array_agg(new.life_previous ORDER BY new.entry_offset))[1] AS seen,
               (array_agg(new.state ORDER BY new.entry_offset DESC))[1] AS state,
               (array_agg(new.life_held ORDER BY new.entry_offset DESC))[1] AS held,
               (array_agg(new.expires_at ORDER BY new.entry_offset DESC))[1] AS expires_at,
               (array_agg(new.budgets::text ORDER BY new.entry_offset))[1]::text[] AS budgets,
               array_agg(new.entry_offset ORDER BY new.entry_offset) AS records
          FROM unnest(ledger_admit.entries) AS new
         WHERE new.life IS NOT NULL
         GROUP BY new.life
    ), changed AS (
        UPDATE holdfast.ledger_lives AS life
           SET state = moved.state, held = moved.held, expires_at = moved.expires_at, records = life.records || moved.records
          FROM moved
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_lives AS known
                              WHERE known.life = moved.life AND known.owner = moved.owner
                                AND known.records[cardinality(known.records)] = moved.seen LIMIT 1) AS found
         WHERE life.ctid = found.place
        RETURNING 1
    ), made AS (
        INSERT INTO holdfast.ledger_lives
        SELECT moved.life, moved.owner, moved.state, moved.held, moved.expires_at, coalesce(moved.budgets, '{}'), moved.records
          FROM moved WHERE moved.seen IS NULL ORDER BY moved.life COLLATE "C"
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM changed) + (SELECT count(*) FROM made) INTO expected, found_;
    IF expected <> found_ THEN
        RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
    END IF;

    IF EXISTS (SELECT FROM unnest(ledger_admit.entries) AS new WHERE new.payee IS NOT NULL) THEN
        WITH moved AS MATERIALIZED (
            SELECT new.payee AS name, min(new.payee_seen) AS seen, sum(new.paid)::bigint AS paid, count(*) AS entries,
                   max(new.entry_offset) AS last_offset
              FROM unnest(ledger_admit.entries) AS new
             WHERE new.payee IS NOT NULL
             GROUP BY new.payee
        ), changed AS (
            UPDATE holdfast.ledger_payees AS payee
               SET balance = payee.balance + moved.paid, entries = payee.entries + moved.entries,
                   last_offset = moved.last_offset
              FROM moved
             CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                                  WHERE known.payee = moved.name AND known.last_offset = moved.seen LIMIT 1) AS found
             WHERE payee.ctid = found.place
            RETURNING 1
        ), made AS (
            INSERT INTO holdfast.ledger_payees
            SELECT moved.name, moved.paid, moved.entries, moved.last_offset
              FROM moved WHERE moved.seen = 0 ORDER BY moved.name COLLATE "C"
            RETURNING 1
        )
        SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM changed) + (SELECT count(*) FROM made)
          INTO expected, found_;
        IF expected <> found_ THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    IF cardinality(ledger_admit.budgets) > 0 THEN
        WITH changed AS (
            UPDATE holdfast.ledger_budgets AS budget
               SET day = new.day, today = new.today, total = new.total, last_offset = ledger_admit.entries[1].entry_offset
              FROM unnest(ledger_admit.budgets) AS new
             CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                                  WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
             WHERE budget.ctid = found.place
            RETURNING 1
        ), made AS (
            INSERT INTO holdfast.ledger_budgets
            SELECT new.budget, new.day, new.today, new.total, ledger_admit.entries[1].entry_offset
              FROM unnest(ledger_admit.budgets) AS new
             WHERE new.seen = 0 ORDER BY new.budget COLLATE "C"
            RETURNING 1
        )
        SELECT cardinality(ledger_admit.budgets), (SELECT count(*) FROM changed) + (SELECT count(*) FROM made)
          INTO expected, found_;
        IF expected <> found_ THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.enqueue_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION holdfast.ledger_admit(
    holdfast.ledger_new_entry[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[]) FROM PUBLIC;

-- Who may do what. symphony_ledger is a node: it opens and admits, looks, and reads for lists and histories.
GRANT USAGE ON SCHEMA holdfast TO symphony_ledger;
GRANT EXECUTE ON FUNCTION
    holdfast.ledger_look(text[], text[], text[], text[], text[]),
    holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]),
    holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[])
    TO symphony_ledger;
GRANT SELECT ON holdfast.ledger_identity, holdfast.ledger_entries, holdfast.ledger_owners, holdfast.ledger_payees,
    holdfast.ledger_budgets, holdfast.ledger_lives, holdfast.ledger_postings
    TO symphony_ledger, symphony_auditor;
