// Drains no-op jobs with graphile-worker or pg-boss: node peers.mjs SUBJECT URL JOBS WORKERS BATCH
// Prints {"seconds": …, "jobs": …}: from the first claim until every job is completed in the database.
// Workers are spread over as many threads as there are processors, so that one event loop is not the limit.
import { availableParallelism } from 'node:os';
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads';
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import { PgBoss } from 'pg-boss';
import pg from 'pg';

const payload = { amount: '12.50', currency: 'USD', note: 'a payload of a usual size, which is some hundred bytes or so long' };
const quiet = new Logger(() => () => {});

const subjects = {
  'graphile-worker': {
    async fill(connectionString, jobs) {
      const utils = await makeWorkerUtils({ connectionString, logger: quiet });
      await utils.migrate();
      // Together, and in pieces: added one by one in one transaction, each would look at all that those before it have left.
      const spec = "json_populate_record(null::graphile_worker.job_spec, json_build_object('identifier', 'noop', 'payload', $2::json))";
      const sql = `select count(*) from graphile_worker.add_jobs(array(select ${spec} from generate_series(1, $1::int)))`;
      await utils.withPgClient(async (client) => {
        for (let left = jobs; left > 0; left -= 1000) {
          await client.query(sql, [Math.min(left, 1000), JSON.stringify(payload)]);
        }
      });
      await utils.release();
    },
    // Its fastest way: jobs are fetched and completed in batches. A runner is one worker with a queue of its own.
    async work({ connectionString, workers, batch, jobs, done }) {
      const noop = async () => {
        if (Atomics.add(done, 0, 1) + 1 === jobs) Atomics.notify(done, 0);
      };
      const worker = {
        connectionString, concurrentJobs: Math.min(24, batch), maxPoolSize: 4, logger: quiet,
        localQueue: { size: batch }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
      };
      const options = { preset: { worker }, taskList: { noop }, noHandleSignals: true };
      const runners = await Promise.all(Array.from({ length: workers }, () => run(options)));
      for (let seen = Atomics.load(done, 0); seen < jobs; seen = Atomics.load(done, 0)) {
        await Atomics.waitAsync(done, 0, seen, 20).value;
      }
      await Promise.all(runners.map((runner) => runner.stop()));
    },
    left: 'select count(*)::int as left from graphile_worker.jobs',
  },
  'pg-boss': {
    async fill(connectionString, jobs) {
      const boss = await this.boss(connectionString, 4);
      await boss.createQueue('noop');
      for (let made = 0; made < jobs; made += 1000) {
        await boss.insert('noop', Array.from({ length: Math.min(1000, jobs - made) }, () => ({ data: payload })));
      }
      await boss.stop({ graceful: false });
    },
    // Its own worker sleeps between two batches; fetching and completing by hand does not.
    async work({ connectionString, workers, batch }) {
      const boss = await this.boss(connectionString, workers + 1);
      const one = async () => {
        for (;;) {
          const jobs = await boss.fetch('noop', { batchSize: batch });
          if (jobs.length === 0) return;
          await boss.complete('noop', jobs.map((job) => job.id));
        }
      };
      await Promise.all(Array.from({ length: workers }, one));
      await boss.stop({ graceful: false });
    },
    async boss(connectionString, max) {
      const boss = new PgBoss({ connectionString, max, supervise: false, schedule: false });
      boss.on('error', (error) => { throw error; });
      await boss.start();
      return boss;
    },
    left: "select count(*)::int as left from pgboss.job where state <> 'completed'",
  },
};

if (isMainThread) {
  const [name, connectionString, ...numbers] = process.argv.slice(2);
  const [jobs, workers, batch] = numbers.map(Number);
  const subject = subjects[name];
  await subject.fill(connectionString, jobs);
  const admin = new pg.Client({ connectionString });
  await admin.connect();
  await admin.query('vacuum analyze');
  await admin.query('checkpoint');
  const done = new Int32Array(new SharedArrayBuffer(8));
  const threads = Math.min(workers, availableParallelism());
  const share = (thread) => Math.floor(workers / threads) + (thread < workers % threads ? 1 : 0);
  const started = Array.from({ length: threads }, (_, thread) =>
    new Worker(new URL(import.meta.url), { workerData: { name, connectionString, jobs, batch, done, workers: share(thread) } }));
  const heard = (word) => Promise.all(started.map((thread) => new Promise((resolve, reject) => {
    thread.on('message', (message) => message === word && resolve());
    thread.on('error', reject);
  })));
  const finished = heard('finished');
  await heard('ready');
  const began = performance.now();
  started.forEach((thread) => thread.postMessage('go'));
  await finished;
  const seconds = (performance.now() - began) / 1000;
  const { rows } = await admin.query(subject.left);
  if (rows[0].left !== 0) throw new Error(`${rows[0].left} jobs are left`);
  console.log(JSON.stringify({ seconds, jobs }));
  await admin.end();
  process.exit(0);
} else {
  parentPort.once('message', async () => {
    await subjects[workerData.name].work(workerData);
    parentPort.postMessage('finished');
  });
  parentPort.postMessage('ready');
}
