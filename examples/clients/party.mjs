// A party of a tacit federation in JavaScript, written from docs/protocol.md alone.
//
//   node party.mjs party.json          (Node.js 18 or newer; no packages)
//
// It takes part in a linear regression with known noise and a full covariance: model.kind = "linear"
// with noise_sd, method.kind = "exact", posterior = "full", privacy = "none". party.json:
//
//   { "host": "server.example.org", "port": 8765, "data": "records.csv", "outcome": "y",
//     "columns": { "age": [18, 105], "dose": [0, 40] }, "noise_sd": 1.0,
//     "certificate": "party-north.pem", "key": "party-north.key", "authority": "ca.pem" }
//
// `columns` are the bounds of the agreed file, in its order: a value is clipped to them, centred at
// their midpoint and divided by half their width, as every party does. Only sums over records leave
// this program. The last line of its output is the posterior as JSON and, on Linux, its largest memory.

import fs from "node:fs";
import path from "node:path";
import tls from "node:tls";

const LARGEST_FRAME = 256 * 1024 * 1024;

// ---------------------------------------------------------------- records and their exact factor

function readRecords(settings, folder) {
  const [header, ...lines] = fs.readFileSync(path.join(folder, settings.data), "utf8").trim().split(/\r?\n/);
  const place = new Map(header.split(",").map((name, index) => [name.trim(), index]));
  for (const name of [settings.outcome, ...Object.keys(settings.columns)]) {
    if (!place.has(name)) throw new Error(`column "${name}" is not in ${settings.data}; its columns are ${header}`);
  }
  return lines.map((line, number) => {
    const cells = line.split(",").map(Number);
    const features = Object.entries(settings.columns).map(([name, [low, high]]) => {
      const value = Math.min(high, Math.max(low, cells[place.get(name)]));
      return (value - (low + high) / 2) / ((high - low) / 2);
    });
    const record = { x: [1, ...features], y: cells[place.get(settings.outcome)] };
    if (![...record.x, record.y].every(Number.isFinite)) {
      throw new Error(`record ${number + 1} of ${settings.data} has a cell that is not a number; fix or delete it`);
    }
    return record;
  });
}

// The likelihood as a function of θ is exp(linear·θ + θᵀ quadratic θ): λ = (Xᵀy/σ², −½XᵀX/σ²).
function exactFactor(records, noiseSd) {
  const d = records[0].x.length;
  const linear = new Array(d).fill(0);
  const quadratic = new Array(d * d).fill(0);
  for (const { x, y } of records) {
    for (let i = 0; i < d; i++) {
      linear[i] += (x[i] * y) / noiseSd ** 2;
      for (let j = 0; j < d; j++) quadratic[i * d + j] -= (0.5 * x[i] * x[j]) / noiseSd ** 2;
    }
  }
  return { linear: { shape: [d], data: linear }, quadratic: { shape: [d, d], data: quadratic } };
}

// Δ = ρ(λ_new − λ_q) with λ_new = λ_q − t + exact, because the likelihood is in the family.
function difference(exact, factor, rho) {
  const made = {};
  for (const [name, { shape, data }] of Object.entries(exact)) {
    const old = factor ? factor[name].data : new Array(data.length).fill(0);
    if (old.length !== data.length) {
      throw new Error(`the server's ${name} has ${old.length} numbers, ours ${data.length}; compare the columns with the agreed file`);
    }
    made[name] = { shape, data: data.map((value, index) => rho * (value - old[index])) };
  }
  return made;
}

// −E_q[log p(records | θ)] for θ ~ q, q in natural parameters.
function expectedLoss(records, noiseSd, posterior) {
  const d = posterior.linear.data.length;
  const covariance = inverse(posterior.quadratic.data.map((value) => -2 * value), d);
  const mean = multiplied(covariance, posterior.linear.data, d);
  let loss = 0;
  for (const { x, y } of records) {
    const spread = multiplied(covariance, x, d).reduce((sum, value, i) => sum + value * x[i], 0);
    const residual = y - x.reduce((sum, value, i) => sum + value * mean[i], 0);
    loss += 0.5 * ((residual ** 2 + spread) / noiseSd ** 2) + Math.log(noiseSd) + 0.5 * Math.log(2 * Math.PI);
  }
  return loss;
}

function multiplied(matrix, vector, d) {
  return vector.map((_, i) => vector.reduce((sum, value, j) => sum + matrix[i * d + j] * value, 0));
}

function inverse(matrix, d) {
  const rows = Array.from({ length: d }, (_, i) => [
    ...matrix.slice(i * d, (i + 1) * d), ...Array.from({ length: d }, (_, j) => (i === j ? 1 : 0)),
  ]);
  for (let k = 0; k < d; k++) {
    const best = rows.slice(k).reduce((at, row, i) => (Math.abs(row[k]) > Math.abs(rows[at][k]) ? k + i : at), k);
    [rows[k], rows[best]] = [rows[best], rows[k]];
    const pivot = rows[k][k];
    rows[k] = rows[k].map((value) => value / pivot);
    for (let i = 0; i < d; i++) {
      const factor = i === k ? 0 : rows[i][k];
      if (factor !== 0) rows[i] = rows[i].map((value, j) => value - factor * rows[k][j]);
    }
  }
  return rows.flatMap((row) => row.slice(d));
}

// ------------------------------------------------------------------------------ frames and messages

function frame(message) {
  const payload = Buffer.from(JSON.stringify(message), "utf8");
  const length = Buffer.alloc(4);
  length.writeUInt32BE(payload.length);
  return Buffer.concat([length, payload]);
}

// Calls `receive(name, fields)` for every whole message, in order.
function reader(receive) {
  let waiting = Buffer.alloc(0);
  return (bytes) => {
    waiting = Buffer.concat([waiting, bytes]);
    while (waiting.length >= 4) {
      const length = waiting.readUInt32BE(0);
      if (length > LARGEST_FRAME) throw new Error(`the server announces a frame of ${length} bytes; at most ${LARGEST_FRAME}`);
      if (waiting.length < 4 + length) return;
      const body = JSON.parse(waiting.subarray(4, 4 + length).toString("utf8"));
      waiting = waiting.subarray(4 + length);
      if (typeof body === "string") receive(body, {});
      else receive(...Object.entries(body)[0]);
    }
  };
}

// ---------------------------------------------------------------------------------------- the party

class Party {
  constructor(settings, folder) {
    this.settings = settings;
    this.files = Object.fromEntries(
      [["cert", "certificate"], ["key", "key"], ["ca", "authority"]].map(([option, name]) => [
        option, fs.readFileSync(path.join(folder, settings[name])),
      ]),
    );
    this.records = readRecords(settings, folder);
    this.exact = exactFactor(this.records, settings.noise_sd);
    this.answers = new Map(); // one answer per request, repeated bytes and all
    this.joined = false;
    this.heartbeat = 0;
  }

  run() {
    return new Promise((resolve, reject) => {
      Object.assign(this, { resolve, reject });
      this.connect();
    });
  }

  connect() {
    const { host, port } = this.settings;
    const line = tls.connect({ host, port, ...this.files, minVersion: "TLSv1.3", maxVersion: "TLSv1.3" });
    const read = reader((name, fields) => this.receive(line, name, fields));
    line.on("secureConnect", () => {
      const hello = { data_size: this.records.length, protocol: 4, encodings: ["json"], heartbeat: true };
      if (this.settings.configuration) hello.configuration = this.settings.configuration;
      this.send(line, this.joined ? "ReJoinCluster" : { JoinCluster: hello });
    });
    line.on("data", (bytes) => {
      if (this.heartbeat > 0) line.setTimeout(3000 * this.heartbeat);
      try {
        read(bytes);
      } catch (error) {
        this.send(line, { Error: { error: error.message, reason: error.message } });
        this.stop(line, error);
      }
    });
    line.on("timeout", () => line.destroy()); // three heartbeats without a word: connect again
    line.on("error", (error) => (this.joined ? null : this.stop(line, error)));
    line.on("close", () => (this.ended ? null : setTimeout(() => this.connect(), 1000)));
  }

  send(line, message) {
    line.write(frame(message));
  }

  stop(line, outcome) {
    this.ended = true;
    line.end();
    if (outcome instanceof Error) this.reject(outcome);
    else this.resolve(outcome);
  }

  receive(line, name, fields) {
    switch (name) {
      case "AcceptedIntoCluster":
      case "ReAcceptanceIntoCluster":
        this.joined = true;
        this.heartbeat = fields.heartbeat_s ?? 0;
        return;
      case "RejectionFromCluster":
        if (fields.code === "rejoin") {
          this.joined = true;
          return; // the server closes; the next connection sends ReJoinCluster
        }
        return this.stop(line, new Error(`the server refused us: ${fields.reason}`));
      case "SelectedForTraining":
        return this.train(line, fields);
      case "Heartbeat":
        return this.send(line, "Heartbeat");
      case "EarlyCloseOfConnection":
        this.send(line, "EndOfConnectionAcknowledgement");
        if (!fields.return_in) this.stop(line, new Error(`the server closed: ${fields.reason}`));
        return;
      case "EndOfTraining":
        this.send(line, { FinalLeaveTraining: { available_for_future_training: true } });
        return this.stop(line, fields.final_posterior);
      case "Error":
        return console.error(`the server says: ${fields.error ?? fields.reason}`);
      default:
        throw new Error(`unexpected message ${name}; this client takes part in plain runs only`);
    }
  }

  train(line, fields) {
    const { request, factor_version, stage } = fields;
    if (stage !== "update") throw new Error(`stage ${stage}; this client knows "update", of method "exact"`);
    if (!this.answers.has(request)) {
      const update = {
        new_likelihood: null,
        delta: difference(this.exact, fields.factor, fields.damping_factor ?? 1),
        loss: expectedLoss(this.records, this.settings.noise_sd, fields.current_posterior),
        request,
        factor_version,
      };
      this.answers.set(request, update);
    }
    this.send(line, { UpdatedLikelihood: this.answers.get(request) });
  }
}

const file = process.argv[2];
if (!file) {
  console.error("usage: node party.mjs party.json");
  process.exit(2);
}
let party;
try {
  party = new Party(JSON.parse(fs.readFileSync(file, "utf8")), path.dirname(path.resolve(file)));
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(4);
}
try {
  const posterior = await party.run();
  const d = posterior.linear.data.length;
  const covariance = inverse(posterior.quadratic.data.map((value) => -2 * value), d);
  const mean = multiplied(covariance, posterior.linear.data, d);
  const sd = mean.map((_, i) => Math.sqrt(covariance[i * d + i]));
  const found = { names: ["intercept", ...Object.keys(party.settings.columns)], mean, sd };
  if (fs.existsSync("/proc/self/status")) {
    const peak = fs.readFileSync("/proc/self/status", "utf8").match(/VmHWM:\s+(\d+)/);
    found.megabytes = Math.round(peak[1] / 1024); // Linux: largest memory of this process
  }
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(5);
}
