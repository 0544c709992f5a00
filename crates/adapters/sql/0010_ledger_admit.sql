-- Admitting what was decided: all of it or nothing.

SET LOCAL ROLE symphony_owner;

-- An entry.
CREATE TYPE holdfast.ledger_new_entry AS (
    entry_offset bigint, at bigint, kind text, owner text, life text, key text, payee text,
    available bigint, held bigint, escrow bigint, paid bigint, revenue bigint, treasury bigint, body bytea, chain bytea);
-- What all of a batch's entries together do to an owner, a life, a payee, a budget. `seen` is the last entry that was seen of it
-- when the batch was decided; 0 if it is new.
CREATE TYPE holdfast.ledger_new_owner AS (
    owner text, seen bigint, available bigint, held bigint, escrow bigint, paid bigint, revenue bigint, treasury bigint,
    opens integer, entries bigint, last_offset bigint, last_at bigint, chain bytea);
CREATE TYPE holdfast.ledger_new_life AS (
    life text, seen bigint, owner text, state text, held bigint, expires_at bigint, budgets text[], records bigint[]);
CREATE TYPE holdfast.ledger_new_payee AS (payee text, seen bigint, paid bigint, entries bigint, last_offset bigint);
CREATE TYPE holdfast.ledger_new_budget AS (budget text, seen bigint, day bigint, today bigint, total bigint, last_offset bigint);
-- What the peer is to be told: see owe_payment_outbox_batch.
CREATE TYPE holdfast.ledger_obligation AS (charge text, owner text, idempotency_key text, payload text, made_at bigint);

-- Admits entries that were decided on what ledger_open gave, in the same transaction. Each guard is checked; one that does not
-- hold, because somebody has been there without the locks, refuses all of it (P7101), and nothing is written. That the sums
-- over entries, owners and payees are the same is checked too: whoever wrote other balances than its entries say is refused (P7102).
CREATE FUNCTION holdfast.ledger_admit(
    entries holdfast.ledger_new_entry[], owners holdfast.ledger_new_owner[], lives holdfast.ledger_new_life[],
    payees holdfast.ledger_new_payee[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[])
RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moved  bigint;
    made   bigint;
    agrees boolean;
BEGIN
    SELECT (sums.available, sums.held, sums.escrow, sums.paid, sums.revenue, sums.treasury, sums.entries, sums.paid)
           IS NOT DISTINCT FROM
           (said.available, said.held, said.escrow, said.paid, said.revenue, said.treasury, said.entries,
            (SELECT coalesce(sum(new.paid), 0) FROM unnest(ledger_admit.payees) AS new))
      INTO agrees
      FROM (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, count(*) AS entries
              FROM unnest(ledger_admit.entries)) AS sums,
           (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, sum(entries) AS entries
              FROM unnest(ledger_admit.owners)) AS said;
    IF NOT agrees THEN
        RAISE EXCEPTION 'UNBALANCED: the balances are not what the entries say' USING ERRCODE = 'P7102';
    END IF;

    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain
      FROM unnest(ledger_admit.entries) AS new
     -- In one order for all nodes: keys are locked as they are written.
     ORDER BY new.key COLLATE "C" NULLS LAST, new.entry_offset;

    -- By place and not by name, here and below: a join could be planned to walk the whole table.
    UPDATE holdfast.ledger_owners AS owner
       SET available = owner.available + new.available, held = owner.held + new.held,
           escrowed = owner.escrowed + new.escrow, paid = owner.paid + new.paid,
           revenue = owner.revenue + new.revenue, treasury = owner.treasury + new.treasury,
           open_holds = owner.open_holds + new.opens, entries = owner.entries + new.entries,
           last_offset = new.last_offset, last_at = new.last_at, chain = new.chain
      FROM unnest(ledger_admit.owners) AS new
     CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_owners AS known
                          WHERE known.owner = new.owner AND known.last_offset = new.seen LIMIT 1) AS found
     WHERE owner.ctid = found.place;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved < cardinality(ledger_admit.owners) THEN
        INSERT INTO holdfast.ledger_owners
        SELECT new.owner, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury, new.opens, new.entries,
               new.last_offset, new.last_at, new.chain
          FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0 ORDER BY new.owner COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF moved + made < cardinality(ledger_admit.owners) THEN
            RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    UPDATE holdfast.ledger_lives AS life
       SET state = new.state, held = new.held, expires_at = new.expires_at, records = life.records || new.records
      FROM unnest(ledger_admit.lives) AS new
     CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_lives AS known
                          WHERE known.life = new.life AND known.owner = new.owner
                            AND known.records[cardinality(known.records)] = new.seen LIMIT 1) AS found
     WHERE life.ctid = found.place;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved < cardinality(ledger_admit.lives) THEN
        INSERT INTO holdfast.ledger_lives
        SELECT new.life, new.owner, new.state, new.held, new.expires_at, new.budgets, new.records
          FROM unnest(ledger_admit.lives) AS new WHERE new.seen = 0 ORDER BY new.life COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF moved + made < cardinality(ledger_admit.lives) THEN
            RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    IF cardinality(ledger_admit.payees) > 0 THEN
        UPDATE holdfast.ledger_payees AS payee
           SET balance = payee.balance + new.paid, entries = payee.entries + new.entries, last_offset = new.last_offset
          FROM unnest(ledger_admit.payees) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                              WHERE known.payee = new.payee AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE payee.ctid = found.place;
        GET DIAGNOSTICS moved = ROW_COUNT;
        INSERT INTO holdfast.ledger_payees
        SELECT new.payee, new.paid, new.entries, new.last_offset
          FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0 ORDER BY new.payee COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF moved + made < cardinality(ledger_admit.payees) THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    IF cardinality(ledger_admit.budgets) > 0 THEN
        UPDATE holdfast.ledger_budgets AS budget
           SET day = new.day, today = new.today, total = new.total, last_offset = new.last_offset
          FROM unnest(ledger_admit.budgets) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                              WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE budget.ctid = found.place;
        GET DIAGNOSTICS moved = ROW_COUNT;
        INSERT INTO holdfast.ledger_budgets
        SELECT new.budget, new.day, new.today, new.total, new.last_offset
          FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0 ORDER BY new.budget COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF moved + made < cardinality(ledger_admit.budgets) THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.owe_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb), array_agg(owed.made_at))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_new_owner[],
    holdfast.ledger_new_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[])
    FROM PUBLIC;

-- Who may do what. symphony_ledger is a node: it opens and admits, looks, and reads for lists and histories.
GRANT USAGE ON SCHEMA holdfast TO symphony_ledger;
GRANT EXECUTE ON FUNCTION
    holdfast.ledger_look(text[], text[], text[], text[], text[]),
    holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]),
    holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_new_owner[], holdfast.ledger_new_life[],
        holdfast.ledger_new_payee[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[])
    TO symphony_ledger;
GRANT SELECT ON holdfast.ledger_identity, holdfast.ledger_entries, holdfast.ledger_owners, holdfast.ledger_payees,
    holdfast.ledger_budgets, holdfast.ledger_lives, holdfast.ledger_postings
    TO symphony_ledger, symphony_auditor;
