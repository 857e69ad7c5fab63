// The points of a model, or of all: five minutes by seconds and an hour by ten seconds, as the server keeps them.

export class History {
  constructor(columns, json) {
    this.names = columns;
    this.rings = json ?? empty(columns);
    this.at = Date.now() / 1000;
  }

  /** Add the point of a second, and that of ten seconds if there is one. */
  add({ point, coarse }) {
    this.at = Date.now() / 1000;
    if (point) this.#push(this.rings.seconds, point);
    if (coarse) this.#push(this.rings.coarse, coarse);
  }

  /** Return [times, ...values of these columns] for a chart; `range` is "seconds" or "coarse". */
  data(range, columns) {
    const { interval, columns: values } = this.rings[range];
    const start = this.#start(range);
    const length = values[columns[0]].length - start;
    const times = Array.from({ length }, (_, index) => this.at - (length - 1 - index) * interval);
    return [times, ...columns.map((name) => values[name].slice(start))];
  }

  /** Return the latest value of a column. */
  last(column) {
    return this.rings.seconds.columns[column].at(-1);
  }

  /** Return the points of a column by seconds, from the first that there is. */
  line(column) {
    return this.rings.seconds.columns[column].slice(this.#start("seconds"));
  }

  /** Return where the points begin: at the first that there is, but never less than a minute ago. */
  #start(range) {
    const { workers } = this.rings[range].columns;
    const first = workers.findIndex((value) => value !== null);
    return Math.min(first < 0 ? workers.length : first, workers.length - (range === "seconds" ? 60 : 30));
  }

  #push({ columns }, point) {
    this.names.forEach((name, index) => {
      columns[name].shift();
      columns[name].push(point[index]);
    });
  }
}

function empty(columns) {
  const ring = (interval, length) => ({
    interval,
    columns: Object.fromEntries(columns.map((name) => [name, Array(length).fill(null)])),
  });
  return { seconds: ring(1, 300), coarse: ring(10, 360) };
}
