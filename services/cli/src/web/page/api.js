// Requests to the server of the page.

// The address is `/TOKEN/`.
const token = location.pathname.split("/")[1];

// A request that failed. `isLost`: the other side cannot be reached.
export class Problem extends Error {
  constructor(message, isLost) {
    super(message);
    this.isLost = isLost;
  }
}

async function request(path, options, patience) {
  let response;
  try {
    const signal = AbortSignal.timeout(patience);
    response = await fetch(`api/${path}`, { ...options, signal, cache: "no-store" });
  } catch (error) {
    const text = error.name === "TimeoutError"
      ? "there is no answer in time"
      : "the server of this page does not answer; has it ended?";
    throw new Problem(text, true);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Problem(`the server of this page answered with status ${response.status}`, true);
  }
  if (!response.ok) {
    throw new Problem(answer.error, response.status === 502);
  }
  return answer;
}

const PATIENCE_MS = 15_000;

export function get(path, seconds = 0) {
  return request(path, {}, PATIENCE_MS + seconds * 1000);
}

// With the token in a header, which no page of another origin can send.
export function post(path, body) {
  const headers = { "x-pikake-token": token, "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, PATIENCE_MS);
}
