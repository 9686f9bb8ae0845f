//! Traces that calls belong to, by the W3C recommendation [Trace Context].
//!
//! A caller sends the metadata `traceparent`, and perhaps `tracestate`. The server gives the call
//! an id of its own in the same trace ([`CallInfo::trace`](crate::CallInfo::trace)), and calls that
//! the handler makes carry that id on. Metadata that the recommendation does not allow is ignored.
//!
//! [Trace Context]: https://www.w3.org/TR/trace-context-1/

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use pikake_traps::random;

use crate::call::current_call;
use crate::protocol::Metadata;

/// The name of the metadata that names the trace and the caller.
pub const TRACEPARENT: &str = "traceparent";
/// The name of the metadata that tracing systems add for themselves.
pub const TRACESTATE: &str = "tracestate";

/// The only version of the header that has been defined.
const VERSION: u8 = 0;
/// A version that no header has.
const NO_VERSION: u8 = 0xff;
/// The flag of a trace that the caller may have recorded.
const SAMPLED: u8 = 1;
/// The most members of a `tracestate`.
const MEMBER_LIMIT: usize = 32;
/// The most characters of a key, of a value, and of the two parts of a key that has an `@`.
const TEXT_LIMIT: usize = 256;
const TENANT_LIMIT: usize = 241;
const SYSTEM_LIMIT: usize = 14;

/// A call, or another unit of work, in a trace.
///
/// # Examples
///
/// ```
/// use pikake::rpc::trace::TraceContext;
///
/// # pikake::sim::example(async {
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let caller = TraceContext::parse(text, "congo=t61rcWkgMzE").unwrap();
/// assert!(caller.is_sampled());
/// assert_eq!(caller.to_string(), text);
///
/// let call = caller.child();
/// assert_eq!(call.trace_id(), caller.trace_id());
/// assert_eq!(call.parent_id(), Some(caller.span_id()));
/// assert_eq!(call.state(), "congo=t61rcWkgMzE");
/// # });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    is_sampled: bool,
    state: String,
}

impl TraceContext {
    /// The beginning of a trace with a random id.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    pub fn root(is_sampled: bool) -> Self {
        let mut halves = [0; 2];
        while halves == [0; 2] {
            halves = [random::u64(), random::u64()];
        }
        let trace_id = u128::from(halves[0]) << u64::BITS | u128::from(halves[1]);
        Self { trace_id, span_id: random_id(), parent_id: None, is_sampled, state: String::new() }
    }

    /// Reads the values of `traceparent` and `tracestate`. `None` if the first one is none of the
    /// recommendation. A `tracestate` that is none counts as empty.
    pub fn parse(traceparent: &str, tracestate: &str) -> Option<Self> {
        let (version, rest) = field::<2>(traceparent.as_bytes())?;
        let (trace, rest) = field::<32>(after_dash(rest)?)?;
        let (id, rest) = field::<16>(after_dash(rest)?)?;
        let (flags, rest) = field::<2>(after_dash(rest)?)?;
        let is_known = match u8::try_from(version).ok()? {
            VERSION => rest.is_empty(),
            NO_VERSION => false,
            // A later version may add fields at the end.
            _ => rest.is_empty() || rest[0] == b'-',
        };
        let (trace_id, span_id) = (trace, u64::try_from(id).ok()?);
        if !is_known || trace_id == 0 || span_id == 0 {
            return None;
        }
        let is_sampled = u8::try_from(flags).ok()? & SAMPLED != 0;
        let state = parse_state(tracestate).unwrap_or_default();
        Some(Self { trace_id, span_id, parent_id: None, is_sampled, state })
    }

    /// The context of a caller, by what it has sent with the call.
    pub(crate) fn of_caller(metadata: &[(String, String)]) -> Option<Self> {
        if metadata.is_empty() {
            return None;
        }
        let of = |name| {
            let pairs = metadata.iter().filter(move |(at, _)| at.eq_ignore_ascii_case(name));
            pairs.map(|(_, value)| value.as_str())
        };
        let mut parents = of(TRACEPARENT);
        let parent = parents.next().filter(|_| parents.next().is_none())?;
        // Several headers count as one list.
        Self::parse(parent, &of(TRACESTATE).collect::<Vec<_>>().join(","))
    }

    /// Another unit of work in the same trace, with a random id, that this one has caused.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    pub fn child(&self) -> Self {
        Self { span_id: random_id(), parent_id: Some(self.span_id), ..self.clone() }
    }

    /// The number of the trace, never zero.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// The number of this unit of work, never zero.
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// The number of the unit of work that caused this one, if it is known.
    pub fn parent_id(&self) -> Option<u64> {
        self.parent_id
    }

    /// Whether the caller may have recorded the trace.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// The value of `tracestate`, which is passed on as it came.
    pub fn state(&self) -> &str {
        &self.state
    }
}

/// The value of `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        write!(f, "{VERSION:02x}-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id)
    }
}

/// The trace of the call whose handler runs in this task. See [`current_call`].
pub fn current() -> Option<TraceContext> {
    current_call()?.trace.clone()
}

/// The metadata of a call that this task makes: in a handler with the handler's trace, unless
/// `metadata` names one.
pub(crate) fn with_current(metadata: &Metadata) -> Cow<'_, Metadata> {
    let Some(call) = current_call() else { return Cow::Borrowed(metadata) };
    let is_named = |(name, _): &(String, String)| name.eq_ignore_ascii_case(TRACEPARENT);
    match &call.trace {
        Some(trace) if !metadata.iter().any(is_named) => {
            let mut metadata = metadata.clone();
            metadata.push((TRACEPARENT.to_owned(), trace.to_string()));
            if !trace.state.is_empty() {
                metadata.push((TRACESTATE.to_owned(), trace.state.clone()));
            }
            Cow::Owned(metadata)
        }
        _ => Cow::Borrowed(metadata),
    }
}

fn random_id() -> u64 {
    loop {
        match random::u64() {
            0 => {}
            id => return id,
        }
    }
}

/// A number of `N` digits in lower case, and what follows.
fn field<const N: usize>(bytes: &[u8]) -> Option<(u128, &[u8])> {
    let (digits, rest) = bytes.split_first_chunk::<N>()?;
    let mut number = 0;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(value);
    }
    Some((number, rest))
}

fn after_dash(bytes: &[u8]) -> Option<&[u8]> {
    bytes.strip_prefix(b"-")
}

/// The members of a `tracestate`, without empty ones; `None` if one is malformed, or there are too
/// many.
fn parse_state(text: &str) -> Option<String> {
    let is_blank = |c| c == ' ' || c == '\t';
    let members = text.split(',').map(|member| member.trim_matches(is_blank));
    let members = members.filter(|member| !member.is_empty());
    // One more than the limit is known as too many.
    let members: Vec<_> = members.take(MEMBER_LIMIT + 1).collect();
    let mut keys = BTreeSet::new();
    let is_valid = members.len() <= MEMBER_LIMIT
        && members.iter().all(|member| {
            let pair = member.split_once('=');
            pair.is_some_and(|(key, value)| is_key(key) && is_value(value) && keys.insert(key))
        });
    is_valid.then(|| members.join(","))
}

fn is_key(key: &str) -> bool {
    let is_part = |part: &str, may_begin_with_digit, limit| {
        let is_in_key = |c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
        let begins = match part.as_bytes() {
            [b'a'..=b'z', ..] => true,
            [b'0'..=b'9', ..] => may_begin_with_digit,
            _ => false,
        };
        begins && part.len() <= limit && part.bytes().all(is_in_key)
    };
    match key.split_once('@') {
        Some((tenant, system)) => {
            is_part(tenant, true, TENANT_LIMIT) && is_part(system, false, SYSTEM_LIMIT)
        }
        None => is_part(key, false, TEXT_LIMIT),
    }
}

fn is_value(value: &str) -> bool {
    let is_in_value = |c| matches!(c, b' '..=b'~') && c != b',' && c != b'=';
    (1..=TEXT_LIMIT).contains(&value.len()) && value.bytes().all(is_in_value)
}
