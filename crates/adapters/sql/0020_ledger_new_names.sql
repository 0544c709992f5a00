-- Names that are new: who begins an account waits for nobody.
--
-- Accounts are locked in the order of their names, but one that is not there cannot be. So a round that had locked all it saw could
-- find, as it wrote a new one, that another round had just begun or moved the same, and wait for it; and that one waited for what the
-- first had locked. The database ended one of them after a second, and it was tried again. Now whoever is to write a new name claims it, and
-- does not wait: if another has claimed it, or it is there by now, the round is stale, and is decided again on what is there.
--
-- A claim ends with its transaction. There are 1,024 places for names, so that a round of thousands of new ones does not take all the
-- room that the server has for locks; two names that share a place only cost a round that is decided again.

SET LOCAL ROLE symphony_owner;

-- Claims names of one kind that are to be new, or says that the round is stale.
CREATE FUNCTION holdfast.ledger_claim(kind text, names text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
DECLARE
    is_ours  boolean;
    is_there boolean;
BEGIN
    SELECT bool_and(pg_try_advisory_xact_lock(7101, place)) INTO is_ours
      FROM (SELECT DISTINCT hashtext(ledger_claim.kind || ':' || named.name) & 1023 AS place
              FROM unnest(ledger_claim.names) AS named (name)) AS places;
    -- A statement of its own: it sees what those have committed who had claimed them before.
    is_there := CASE ledger_claim.kind
        WHEN 'owner' THEN EXISTS (SELECT FROM holdfast.ledger_owners AS known WHERE known.owner = ANY (ledger_claim.names))
        WHEN 'payee' THEN EXISTS (SELECT FROM holdfast.ledger_payees AS known WHERE known.payee = ANY (ledger_claim.names))
        WHEN 'budget' THEN EXISTS (SELECT FROM holdfast.ledger_budgets AS known WHERE known.budget = ANY (ledger_claim.names))
        END;
    IF NOT is_ours OR is_there THEN
        RAISE EXCEPTION 'STALE: one that was new is another''s or there by now' USING ERRCODE = 'P7101';
    END IF;
END
$$;

-- As before (0019), with claims.
CREATE OR REPLACE FUNCTION holdfast.ledger_admit(
    decided_at bigint, entries holdfast.ledger_new_entry[], owners holdfast.ledger_moved_owner[], turning integer,
    begun holdfast.ledger_new_life[], moved holdfast.ledger_moved_life[],
    payees holdfast.ledger_new_payee[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[],
    OUT owner_places tid[], OUT begun_places tid[], OUT moved_places tid[], OUT block bigint, OUT moment bigint)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_there bigint;
    turned      bigint;
    made        tid[];
    agrees      boolean;
BEGIN
    moment := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    IF moment - ledger_admit.decided_at > 3000 THEN
        RAISE EXCEPTION 'STALE: it was decided long ago' USING ERRCODE = 'P7101';
    END IF;
    SELECT (sums.available, sums.held, sums.escrow, sums.paid, sums.revenue, sums.treasury, sums.entries, sums.paid)
           IS NOT DISTINCT FROM
           (said.available, said.held, said.escrow, said.paid, said.revenue, said.treasury, said.entries,
            CASE WHEN cardinality(ledger_admit.payees) > 0
                 THEN (SELECT sum(new.paid) FROM unnest(ledger_admit.payees) AS new) ELSE 0 END)
           AND said.entries = said.records AND said.turning = ledger_admit.turning
      INTO agrees
      FROM (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, count(*) AS entries
              FROM unnest(ledger_admit.entries)) AS sums,
           (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, sum(entries) AS entries, sum(cardinality(records)) AS records,
                   count(*) FILTER (WHERE turns) AS turning
              FROM unnest(ledger_admit.owners)) AS said;
    IF agrees IS NOT TRUE THEN
        RAISE EXCEPTION 'UNBALANCED: the balances are not what the entries say' USING ERRCODE = 'P7102';
    END IF;

    -- By place, and not by name: whoever holds the lock, or was the last to write it, knows it, and a look by name is most of what
    -- this costs. (IS NOT DISTINCT FROM: no index can answer that, or it would be asked.) A page that is full is read where it
    -- was, and kept once the owner is locked.
    WITH there AS (
        UPDATE holdfast.ledger_owners AS owner
           SET available = owner.available + new.available, held = owner.held + new.held,
               escrowed = owner.escrowed + new.escrow, paid = owner.paid + new.paid,
               revenue = owner.revenue + new.revenue, treasury = owner.treasury + new.treasury,
               open_holds = owner.open_holds + new.opens, entries = owner.entries + new.entries,
               last_offset = new.last_offset, last_at = new.last_at, chain = new.chain,
               recent = CASE WHEN new.turns THEN new.records ELSE owner.recent || new.records END
          FROM unnest(ledger_admit.owners) AS new
          LEFT JOIN LATERAL (SELECT known.recent FROM holdfast.ledger_owners AS known
                              WHERE known.ctid = CASE WHEN new.turns THEN new.place END
                                AND known.owner IS NOT DISTINCT FROM new.owner AND known.last_offset = new.seen) AS page ON true
         WHERE owner.ctid = new.place AND owner.owner IS NOT DISTINCT FROM new.owner
           AND owner.last_offset = new.seen AND owner.fence = new.fence
        RETURNING owner.ctid AS place, owner.owner, page.recent
    ), turned AS (
        INSERT INTO holdfast.ledger_histories (owner, first_offset, first_at, offsets)
        SELECT there.owner, there.recent[1], first.at, there.recent
          FROM there
          -- A page that cannot be found is not left out: it has no moment, which the table refuses.
          LEFT JOIN LATERAL (SELECT known.at FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = there.recent[1] LIMIT 1) AS first ON true
         WHERE there.recent IS NOT NULL)
    SELECT array_agg(place), count(*), count(recent) INTO owner_places, found_there, turned FROM there;
    IF turned < ledger_admit.turning THEN
        RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
    END IF;
    IF found_there < cardinality(ledger_admit.owners) THEN
        PERFORM holdfast.ledger_claim('owner',
            ARRAY(SELECT new.owner FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0));
        WITH made AS (
            INSERT INTO holdfast.ledger_owners
            SELECT new.owner, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury, new.opens, new.entries,
                   new.last_offset, new.last_at, new.chain, new.records, new.fence
              FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0
            RETURNING ctid AS place)
        SELECT array_agg(place), found_there + count(*) INTO made, found_there FROM made;
        IF found_there < cardinality(ledger_admit.owners) THEN
            RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
        END IF;
        owner_places := owner_places || made;
    END IF;

    IF cardinality(ledger_admit.payees) > 0 THEN
        UPDATE holdfast.ledger_payees AS payee
           SET balance = payee.balance + new.paid, entries = payee.entries + new.entries, last_offset = new.last_offset
          FROM unnest(ledger_admit.payees) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                              WHERE known.payee = new.payee AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE payee.ctid = found.place AND payee.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        IF found_there < cardinality(ledger_admit.payees) THEN
            PERFORM holdfast.ledger_claim('payee',
                ARRAY(SELECT new.payee FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0));
        END IF;
        WITH made AS (
            INSERT INTO holdfast.ledger_payees
            SELECT new.payee, new.paid, new.entries, new.last_offset
              FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.payees) THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.budgets) > 0 THEN
        UPDATE holdfast.ledger_budgets AS budget
           SET day = new.day, today = new.today, total = new.total, last_offset = new.last_offset
          FROM unnest(ledger_admit.budgets) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                              WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE budget.ctid = found.place AND budget.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        IF found_there < cardinality(ledger_admit.budgets) THEN
            PERFORM holdfast.ledger_claim('budget',
                ARRAY(SELECT new.budget FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0));
        END IF;
        WITH made AS (
            INSERT INTO holdfast.ledger_budgets
            SELECT new.budget, new.day, new.today, new.total, new.last_offset
              FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.budgets) THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- Those with keys by their keys before the others: keys are locked as they are written.
    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain
      FROM unnest(ledger_admit.entries) AS new;

    IF cardinality(ledger_admit.moved) > 0 THEN
        WITH there AS (
            UPDATE holdfast.ledger_lives AS life
               SET state = new.state, held = new.held, expires_at = new.expires_at, records = life.records || new.records
              FROM unnest(ledger_admit.moved) AS new
             WHERE life.ctid = new.place AND life.life IS NOT DISTINCT FROM new.life AND life.owner = new.owner
               AND life.records[cardinality(life.records)] = new.seen
            RETURNING life.ctid AS place)
        SELECT array_agg(place), count(*) INTO moved_places, found_there FROM there;
        IF found_there < cardinality(ledger_admit.moved) THEN
            RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.begun) > 0 THEN
        WITH made AS (
            INSERT INTO holdfast.ledger_lives
            SELECT new.life, new.owner, new.state, new.held, new.expires_at, new.budgets, new.records
              FROM unnest(ledger_admit.begun) AS new
            RETURNING ctid AS place)
        SELECT array_agg(place) INTO begun_places FROM made;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.owe_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb), array_agg(owed.made_at))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
    block := nextval('holdfast.ledger_blocks') * 8192;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_claim(text, text[]) FROM PUBLIC;
