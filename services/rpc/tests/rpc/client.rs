//! The client: what it leaves behind, what it repeats, and where it sends calls.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::{kernel_figures, tasks_from};
use pikake::net::{Closing, MemoryStream, TcpListener};
use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{Balance, CallError, Client, Executed, Server, channel};
use pikake::sim::{Between, Fault, FaultPlan, Sim};
use pikake::testing::interrupt_everywhere;
use pikake::time::{elapsed_since, now};
use pikake::traps::figures::{self, Value};
use pikake::{Interrupted, sleep, spawn, timeout_after};

use crate::harness::{
    Called, Door, Listening, away, client_of, millis_since, ms, pause, run, serve_stream, shop,
    shop_by, shops, unreachable, why,
};
use crate::shop::{Keeper, ShopClient, ShopServer};

const REFUSED: &str = "Connection(Io(Kind(ConnectionRefused))), No";

#[pikake::sim(seeds = 1)]
async fn a_notice_with_a_channel_is_refused() {
    let (client, shop, _) = shop();
    let (_numbers, receiver) = channel(4);
    let error = shop.collect(receiver).await;
    assert!(why(error).starts_with("Encode("));
    assert_eq!(ShopClient::new(client).sell(1).await.unwrap(), 1);
}

/// The error of a call that cannot be repeated is the first one, and not that its channel has
/// travelled.
#[pikake::sim(seeds = 1)]
async fn calls_with_channels_are_sent_once() {
    let (_, shop, _) = shop_by(Client::builder(), || Server::new().all_calls(0));
    assert_eq!(why(shop.sum(channel(4).1).await), "Overloaded, No");
    assert_eq!(why(shop.sum_again(channel(4).1).await), "Overloaded, No");
}

#[pikake::sim(seeds = 1)]
async fn overloads_are_repeated_after_pauses() {
    let (_, shop, _) = shop_by(Client::builder().attempts(3), || Server::new().all_calls(0));
    let since = now();
    assert_eq!(why(shop.sell(1).await), "Overloaded, No");
    let took = elapsed_since(since);
    assert!(took >= ms(75) && took <= ms(160), "{took:?}");
    // A pause that outlasts the caller is not begun.
    let since = now();
    assert_eq!(why(timeout_after(ms(10), shop.sell(1)).await.unwrap()), "Overloaded, No");
    assert!(elapsed_since(since) < ms(10));
}

#[pikake::sim(seeds = 1)]
async fn a_close_lets_streams_end() {
    let (client, shop, _) = shop();
    let (numbers, receiver) = channel(4);
    let count = spawn(shop.count(1_000, numbers));
    assert_eq!(receiver.recv().await.unwrap(), Some(0));
    let closed = spawn(async move { client.close().await });
    let mut items = 1;
    while receiver.recv().await.unwrap().is_some() {
        items += 1;
    }
    assert_eq!(items, 1_000);
    count.await.unwrap().unwrap();
    closed.await.unwrap().unwrap();
    // A later call connects again.
    assert_eq!(shop.sell(1).await.unwrap(), 1);
}

#[pikake::sim(seeds = 1)]
async fn notices_arrive_though_the_client_is_dropped() {
    let (client, shop, keeper) = shop();
    for number in 0..100 {
        shop.note(number.to_string()).await.unwrap();
    }
    drop((client, shop));
    pause(ms(2_000)).await;
    assert_eq!(keeper.0.notes.borrow().len(), 100);
}

#[pikake::sim(seeds = 1)]
async fn a_client_that_is_dropped_leaves_no_task() {
    let (door, keeper) = (Door::new(), Keeper::default());
    door.serve(&keeper, Server::new);
    pause(ms(1)).await;
    let tasks = || kernel_figures().tasks;
    let before = tasks();
    let shop = ShopClient::new(door.add(Client::builder(), "shop").build());
    assert_eq!(shop.sell(1).await.unwrap(), 1);
    let call = spawn(shop.sell(60_000));
    pause(ms(1)).await;
    drop(shop);
    call.abort();
    pause(ms(5_000)).await;
    assert_eq!((tasks(), keeper.under_way()), (before, 0));
}

/// The channel is full when the caller gives up, and the credit for half of it lets items leave.
#[pikake::sim(seeds = 1)]
async fn items_for_a_caller_that_gave_up_harm_no_other_call() {
    let it = Listening::new(|server| server).await;
    let (sender, receiver) = channel(16);
    let count = spawn(it.shop.count(u64::MAX, sender));
    let sale = spawn(it.shop.sell(200));
    pause(ms(100)).await;
    for number in 0..8 {
        assert_eq!(receiver.recv().await.unwrap(), Some(number));
    }
    count.request_cancel("enough");
    assert!(count.await.unwrap().is_err());
    assert_eq!(sale.await.unwrap().unwrap(), 200);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn a_refused_late_request_harms_no_other_call() {
    let it = Listening::of(Client::builder().attempts(1), |server| server).await;
    let first = spawn(it.shop.sell(200));
    pause(ms(100)).await;
    // The request is on its way when the server begins to leave.
    let late = spawn(it.shop.sell(1));
    pikake::yield_now().await.unwrap();
    it.closing.begin();
    assert_eq!(why(late.await.unwrap()), "ShuttingDown, No");
    assert_eq!(first.await.unwrap().unwrap(), 200);
    it.end().await;
}

/// At each await of callers, with a connection to be made and with one that is full.
#[test]
fn interruptions_leave_nothing_behind() {
    let report = interrupt_everywhere(
        || async {
            let (door, keeper) = (Door::new(), Keeper::named("one"));
            door.serve(&keeper, || Server::new().calls(1).grace(ms(50)));
            let client = door.add(Client::builder(), "shop").build();
            let shop = ShopClient::new(client.clone());
            let other = spawn(shop.sell(20));
            let mut results = Vec::new();
            results.push(shop.sell(10).await.map(|_| ()));
            let (numbers, receiver) = channel(1);
            let sum = async {
                let sum = shop.sum(receiver).await;
                sum.map(|sum| assert_eq!(sum, 6))
            };
            let send = spawn(async move {
                for number in [1, 2, 3] {
                    if numbers.send(number).await.is_err() {
                        break;
                    }
                }
            });
            results.push(sum.await);
            results.push(shop.note("noted".to_owned()).await);
            pikake::shield(async {
                let _ = send.await;
                assert_eq!(other.await.unwrap().unwrap(), 20);
                // The only place is free.
                assert_eq!(shop.name().await.unwrap(), "one");
                client.close().await.unwrap();
            })
            .await;
            drop((shop, client, door));
            pikake::shield(sleep(ms(3_000))).await.unwrap();
            (results, keeper.under_way())
        },
        |run| {
            let (results, under_way) = run.output.as_ref().expect("the program waits on traps");
            assert_eq!(*under_way, 0);
            let failed: Vec<_> =
                results.iter().filter_map(|result| result.as_ref().err()).collect();
            assert!(failed.len() <= 1, "{failed:?}");
            if let [error] = failed[..] {
                let interrupted = error.interrupted().expect("an interruption");
                let by = run.interruption.as_ref().expect("it was interrupted");
                assert_eq!(interrupted.is_cancel(), by.kind.is_cancel(), "{error}");
            }
        },
    );
    assert!(report.suspensions >= 3 && report.cancels > 5, "{report:?}");
}

/// A caller is dropped after each number of steps: the only place is free again, and no handler
/// goes on.
#[test]
fn callers_may_be_dropped_at_each_step() {
    let mut given_up = 0;
    for steps in 0..60 {
        given_up += run(async move {
            let (client, shop, keeper) = shop_by(Client::builder(), || Server::new().calls(1));
            let calls = [(); 2].map(|()| spawn(shop.sell(1_000)));
            for _ in 0..steps {
                pikake::yield_now().await.unwrap();
            }
            for call in calls {
                call.abort();
            }
            let since = now();
            assert_eq!(shop.sell(0).await.unwrap(), 0, "after {steps} steps");
            assert!(millis_since(since) < 1, "after {steps} steps");
            assert_eq!(keeper.under_way(), 0, "after {steps} steps");
            client.close().await.unwrap();
            keeper.ends().len()
        });
    }
    assert!(given_up > 5, "{given_up} handlers were interrupted");
}

#[pikake::sim(seeds = 1)]
async fn an_attempt_to_connect_survives_its_caller() {
    let (connects, keeper) = (Rc::new(Cell::new(0)), Keeper::default());
    let counted = connects.clone();
    let client = Client::builder().server("slow", move || {
        counted.set(counted.get() + 1);
        let keeper = keeper.clone();
        async move {
            sleep(ms(100)).await?;
            Ok(serve_stream(&keeper))
        }
    });
    let shop = ShopClient::new(client.build());
    assert!(timeout_after(ms(10), shop.sell(1)).await.is_err());
    let since = now();
    assert_eq!(shop.sell(0).await.unwrap(), 0);
    assert_eq!((connects.get(), millis_since(since)), (1, 90));
}

#[pikake::sim(seeds = 1)]
async fn an_attempt_to_connect_has_a_deadline() {
    let client = unreachable(Client::builder().attempts(1), "nowhere").build();
    let since = now();
    let error = ShopClient::new(client).sell(1).await.unwrap_err();
    assert_eq!(millis_since(since), 10_000);
    assert!(error.to_string().contains("no connection within 10s; not executed"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
}

/// On a real kernel: a panic of a task ends a simulation.
#[pikake::test]
async fn a_panic_while_connecting_is_an_error() {
    let client = Client::builder().attempts(2).server("broken", || {
        assert!(now() < now(), "no connection today");
        async { Ok(MemoryStream::pair(1).0) }
    });
    let why = why(ShopClient::new(client.build()).sell(1).await);
    assert!(why.starts_with("Connection(") && why.ends_with(", No"), "{why}");
}

/// The moments of the attempts to connect, in ms.
#[pikake::sim(seeds = 1)]
async fn pauses_between_attempts_grow() {
    let (moments, begin) = (Rc::new(RefCell::new(Vec::new())), now());
    let noted = moments.clone();
    let client = Client::builder().attempts(10).server("away", move || {
        noted.borrow_mut().push(elapsed_since(begin));
        async { Err::<MemoryStream, _>(io::ErrorKind::ConnectionRefused.into()) }
    });
    let shop = ShopClient::new(client.build());
    for call in [(); 3].map(|()| spawn(shop.sell(1))) {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionRefused);
    }
    let moments = moments.take();
    assert!(moments.len() <= 12, "callers do not share attempts: {moments:?}");
    assert!(moments[0] < ms(1));
    for (number, pair) in moments.windows(2).enumerate() {
        let most = ms(50 << number).min(ms(1_000));
        let pause = pair[1] - pair[0];
        assert!(pause >= most / 2 && pause <= most + ms(1), "{number}: {pause:?}");
    }
    // Callers whose time ends before the next attempt get the last error at once.
    let since = now();
    assert_eq!(why(timeout_after(ms(100), shop.sell(1)).await.unwrap()), REFUSED);
    assert_eq!(millis_since(since), 0);
}

/// A server that says hello and closes is not asked in a loop.
#[pikake::sim(seeds = 1)]
async fn connections_of_no_use_are_replaced_after_pauses() {
    let begin = now();
    let mut called = Called::new(Client::builder().attempts(4));
    let use_up = "accept 10 16; < request 1 sell 1; > leave 0; drop; ".repeat(4);
    called.play(&format!("call; {use_up} got ShuttingDown, No")).await;
    assert!(elapsed_since(begin) >= ms(25 + 50 + 100), "{:?}", elapsed_since(begin));
}

#[pikake::sim(seeds = 1)]
async fn calls_go_round() {
    let (doors, _keepers) = shops(3);
    let shop = ShopClient::new(client_of(&doors, Client::builder()));
    assert_eq!(names(&shop, 6).await, "012012");
}

/// The names of the servers that answer so many calls.
async fn names(shop: &ShopClient, calls: usize) -> String {
    let mut names = String::new();
    for _ in 0..calls {
        names += &shop.name().await.unwrap();
    }
    names
}

#[pikake::sim(seeds = 1)]
async fn calls_go_where_the_fewest_are() {
    let (doors, keepers) = shops(3);
    let builder = Client::builder().balance(Balance::LeastOutstanding);
    let shop = ShopClient::new(client_of(&doors, builder));
    let mut slow = Vec::new();
    for _ in 0..9 {
        slow.push(spawn(shop.sell(1_000)));
        pause(ms(1)).await;
    }
    let under_way: Vec<_> = keepers.iter().map(Keeper::under_way).collect();
    assert_eq!(under_way, [3, 3, 3]);
    slow[1].request_cancel("enough");
    pause(ms(1)).await;
    assert_eq!(names(&shop, 2).await, "11");
}

#[pikake::sim(seeds = 1)]
async fn a_server_that_is_away_is_left_out() {
    let (doors, keepers) = shops(3);
    let is_away = Rc::new(Cell::new(true));
    let away = is_away.clone();
    let (keeper, connects) = (keepers[0].clone(), Rc::new(Cell::new(0)));
    let counted = connects.clone();
    let builder = Client::builder().attempts(2).server("0", move || {
        counted.set(counted.get() + 1);
        let result = match away.get() {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(serve_stream(&keeper)),
        };
        std::future::ready(result)
    });
    let shop = ShopClient::new(doors[2].add(doors[1].add(builder, "1"), "2").build());
    // The first call was refused at one server, and went on to the next.
    assert_eq!((&*names(&shop, 5).await, connects.get()), ("12121", 1));
    // Later calls let the client look for the server, and wait for others.
    pause(ms(100)).await;
    let since = now();
    assert_eq!((&*names(&shop, 4).await, millis_since(since)), ("2121", 0));
    pause(ms(1)).await;
    assert_eq!(connects.get(), 2);
    is_away.set(false);
    pause(ms(200)).await;
    let _ = shop.name().await.unwrap();
    pause(ms(1)).await;
    let names = names(&shop, 6).await;
    assert_eq!((names.matches('0').count(), connects.get()), (2, 3), "{names}");
}

/// A server that does not answer delays the call that connects to it, and no other.
#[pikake::sim(seeds = 1)]
async fn calls_go_where_a_connection_is() {
    let (doors, _keepers) = shops(2);
    let shop = ShopClient::new(doors[1].add(unreachable(Client::builder(), "0"), "1").build());
    let slow = spawn(shop.name());
    pause(ms(1)).await;
    let since = now();
    assert_eq!((&*names(&shop, 5).await, millis_since(since)), ("11111", 0));
    // The first call goes on to the other server when the attempt has failed.
    assert_eq!(slow.await.unwrap().unwrap(), "1");
    assert!(millis_since(since) >= 9_990);
}

#[pikake::sim(seeds = 1)]
async fn several_connections_go_to_a_server() {
    let (door, keeper) = (Door::new(), Keeper::default());
    let shop = ShopClient::new(door.add(Client::builder().connections(2), "shop").build());
    let calls = [(); 4].map(|()| spawn(shop.sell(10)));
    pause(ms(1)).await;
    assert_eq!(door.0.len(), 2);
    door.serve(&keeper, Server::new);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 10);
    }
}

#[pikake::sim(seeds = 1)]
async fn breakers_open_and_try_again() {
    let builder = Client::builder().attempts(1).break_after(2, ms(1_000));
    let (_, shop, keeper) = shop_by(builder, Server::new);
    for _ in 0..2 {
        assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
    }
    assert_eq!(why(shop.sell(1).await), "BreakerOpen, No");
    assert_eq!(keeper.begun(), 2);
    pause(ms(1_000)).await;
    // One call tries, and the others are not sent.
    let trial = spawn(timeout_after(ms(10), shop.sell(60_000)));
    pause(ms(1)).await;
    assert_eq!(why(shop.sell(1).await), "BreakerOpen, No");
    assert!(trial.await.unwrap().is_err());
    assert_eq!(why(shop.sell(1).await), "BreakerOpen, No");
    pause(ms(1_000)).await;
    // A trial that is given up says nothing.
    let given_up = spawn(shop.sell(60_000));
    pause(ms(1)).await;
    given_up.abort();
    pause(ms(1)).await;
    assert_eq!(shop.sell(1).await.unwrap(), 1);
    assert_eq!(shop.sell(1).await.unwrap(), 1);
}

/// A trial that lasts, such as a call with a channel, keeps other calls away for one pause.
#[pikake::sim(seeds = 1)]
async fn a_long_trial_is_followed_by_another() {
    let builder = Client::builder().attempts(1).break_after(1, ms(1_000)).connections(2);
    let (_, shop, _) = shop_by(builder, Server::new);
    assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
    // The server has the breaker, and not each connection.
    assert_eq!(why(shop.sell(1).await), "BreakerOpen, No");
    pause(ms(1_000)).await;
    let trial = spawn(shop.sell(60_000));
    pause(ms(900)).await;
    assert_eq!(why(shop.sell(1).await), "BreakerOpen, No");
    pause(ms(100)).await;
    assert_eq!(shop.sell(1).await.unwrap(), 1);
    trial.abort();
    assert_eq!(shop.sell(1).await.unwrap(), 1);
}

#[pikake::sim(seeds = 1)]
async fn a_server_with_several_connections_is_one() {
    let builder = Client::builder().connections(2).hedge_after(ms(50));
    let (_, shop, keeper) = shop_by(builder, Server::new);
    // No hedge goes to the same server.
    assert_eq!(shop.look(200).await.unwrap(), "");
    assert_eq!(keeper.begun(), 1);
    // Nor do attempts follow each other without a pause.
    let (_, shop, _) = shop_by(Client::builder().connections(2), || Server::new().all_calls(0));
    let since = now();
    assert_eq!(why(shop.sell(1).await), "Overloaded, No");
    assert!(elapsed_since(since) >= ms(75), "{:?}", elapsed_since(since));
}

/// The connections of a server share what is known of it.
#[pikake::sim(seeds = 20)]
async fn a_server_that_is_away_is_asked_once() {
    let (builder, connects) = away(Client::builder().attempts(1).connections(4), "away");
    let shop = ShopClient::new(builder.build());
    assert_eq!(why(shop.sell(1).await), REFUSED);
    for attempts in 2..5 {
        let since = now();
        for call in [(); 6].map(|()| spawn(shop.sell(1))) {
            assert_eq!(why(call.await.unwrap()), REFUSED);
        }
        assert!(elapsed_since(since) >= ms(25), "{:?}", elapsed_since(since));
        assert_eq!(connects.get(), attempts);
    }
}

#[pikake::sim(seeds = 1)]
async fn metadata_of_a_name_is_replaced_or_added() {
    let one = shop().0.with_metadata("tenant", "1");
    let tenants = async |client| {
        let (_, first, all) = ShopClient::new(client).who().await.unwrap();
        (first.unwrap(), all.join(" "))
    };
    let expected = |first: &str, all: &str| (first.to_owned(), all.to_owned());
    assert_eq!(tenants(one.with_metadata("Tenant", "2")).await, expected("2", "2"));
    assert_eq!(tenants(one.add_metadata("tenant", "2")).await, expected("1", "1 2"));
    let three = one.add_metadata("tenant", "2").with_metadata("tenant", "3");
    assert_eq!(tenants(three).await, expected("3", "3"));
    assert_eq!(tenants(one).await, expected("1", "1"));
}

#[pikake::sim(seeds = 1)]
async fn deadlines_travel_with_calls() {
    let (_, shop, keeper) = shop();
    assert_eq!(shop.left().await.unwrap(), None);
    // The nearest one counts, whatever the order.
    for (outer, inner) in [(50, 1_000), (1_000, 50)] {
        let left = timeout_after(ms(inner), shop.left());
        let left = timeout_after(ms(outer), left).await.unwrap().unwrap().unwrap().unwrap();
        assert!(left > ms(49) && left <= ms(50), "{left:?}");
    }
    assert!(timeout_after(ms(50), shop.sell(60_000)).await.is_err());
    assert_eq!(shop.add(1, 1).await.unwrap(), 2);
    // The handler has a deadline of its own, and no order to the caller's.
    pause(ms(1)).await;
    assert_eq!((keeper.ends().len(), keeper.under_way()), (1, 0));
}

/// A task may await a call whose client is gone.
#[pikake::sim(seeds = 1)]
async fn calls_borrow_nothing() {
    let call = spawn(shop().1.add(1, 2));
    assert_eq!(call.await.unwrap().unwrap(), 3);
}

/// The deadline has passed before the call is made, and no wait has said so.
#[pikake::sim(seeds = 1)]
async fn calls_after_a_deadline_are_not_sent() {
    let (_, shop, keeper) = shop();
    assert_eq!(shop.sell(1).await.unwrap(), 1);
    let executed = Cell::new(None);
    let late = timeout_after(Duration::ZERO, async {
        executed.set(Some(shop.sell(1).await.unwrap_err().executed));
    });
    assert!(late.await.is_err());
    assert_eq!(executed.get(), Some(Executed::No));
    pause(ms(10)).await;
    assert_eq!(keeper.begun(), 1);
}

/// A kernel that shuts down starts no tasks, also none that connects.
#[test]
fn calls_of_a_shutdown_have_errors() {
    let executed = Rc::new(Cell::new(None));
    let noted = executed.clone();
    run(async {
        let shop = ShopClient::new(unreachable(Client::builder(), "shop").build());
        spawn(async move {
            let _ = sleep(Duration::MAX).await;
            noted.set(Some(shop.sell(1).await.unwrap_err().executed));
        })
        .detach();
        pause(ms(1)).await;
    });
    assert_eq!(executed.get(), Some(Executed::No));
}

#[pikake::sim(seeds = 1)]
async fn hedges_go_to_another_server() {
    let (doors, keepers) = shops(2);
    let shop = ShopClient::new(client_of(&doors, Client::builder().hedge_after(ms(50))));
    keepers[0].0.delay.set(ms(60_000));
    let since = now();
    assert_eq!(shop.look(10).await.unwrap(), "1");
    assert_eq!(millis_since(since), 60);
    // The slow attempt was given up.
    pause(ms(1)).await;
    assert_eq!(keepers[0].ends(), ["cancelled: the caller has given up"]);
    assert_eq!(keepers[0].under_way(), 0);
    // A quick answer needs no second attempt, nor does a method that is not idempotent.
    keepers[0].0.delay.set(Duration::ZERO);
    let begun = || keepers.iter().map(Keeper::begun).sum::<usize>();
    assert_eq!(begun(), 2);
    assert_eq!(shop.look(10).await.unwrap(), "0");
    assert_eq!(shop.sell(100).await.unwrap(), 100);
    assert_eq!(begun(), 4);
    // A hedge is an attempt.
    let (doors, keepers) = shops(2);
    let client = client_of(&doors, Client::builder().attempts(1).hedge_after(ms(50)));
    assert_eq!(ShopClient::new(client).look(200).await.unwrap(), "0");
    assert_eq!(keepers[1].begun(), 0);
}

#[test]
fn hedged_calls_are_interrupted_whole() {
    let report = interrupt_everywhere(
        || async {
            let (doors, keepers) = shops(2);
            let client = client_of(&doors, Client::builder().hedge_after(ms(50)));
            keepers[0].0.delay.set(ms(60_000));
            let looked = ShopClient::new(client).look(10).await;
            drop(doors);
            pikake::shield(sleep(ms(3_000))).await.unwrap();
            (looked, keepers.iter().map(Keeper::under_way).sum::<usize>())
        },
        |run| {
            let (looked, under_way) = run.output.as_ref().expect("the program waits on traps");
            assert_eq!(*under_way, 0);
            match looked {
                Ok(name) => assert_eq!(name, "1"),
                Err(error) => assert!(error.interrupted().is_some(), "{error}"),
            }
        },
    );
    assert!(report.suspensions >= 3, "{report:?}");
}

async fn serve_shop(closing: Closing) {
    let listener = TcpListener::bind("0.0.0.0:7000").await.unwrap();
    let server = Server::new().add(ShopServer::new(Keeper::named("tcp"))).closing(&closing);
    server.serve(listener).await.unwrap();
}

/// Runs a client's program in a world with a server `shop`, which has faults.
fn with_faults<F: Future>(faults: &[(u64, Fault)], program: impl FnOnce(ShopClient) -> F) {
    let mut sim = Sim::new(3);
    sim.host("shop", || serve_shop(Closing::new()));
    let add = |plan: FaultPlan, (at, fault): &(u64, Fault)| plan.at(ms(*at), fault.clone());
    sim.faults(faults.iter().fold(FaultPlan::new(), add));
    let program = async { program(ShopClient::new(Client::tcp("shop:7000"))).await };
    sim.run_here("client", program).unwrap().outcome.unwrap();
}

#[test]
fn a_call_lost_with_its_connection_is_perhaps_executed() {
    let kill = [(1_000, Fault::Kill("shop".into())), (1_100, Fault::Restart("shop".into()))];
    with_faults(&kill, async |shop| {
        let sale = spawn(shop.sell(5_000));
        let look = spawn(shop.look(5_000));
        let why = why(sale.await.unwrap());
        assert!(why.ends_with(", Maybe"), "{why}");
        // The method is idempotent: the call is repeated when the server is back.
        assert_eq!(look.await.unwrap().unwrap(), "tcp");
    });
    // The further attempts find no server, and do not speak for the first one.
    with_faults(&kill[..1], async |shop| {
        let why = why(shop.look(60_000).await);
        assert!(why.starts_with("Connection(") && why.ends_with(", Maybe"), "{why}");
    });
}

#[test]
fn a_call_that_reached_nobody_is_not_executed() {
    with_faults(&[(1_000, Fault::Kill("shop".into()))], async |shop| {
        assert_eq!(shop.name().await.unwrap(), "tcp");
        pause(ms(1_500)).await;
        let since = now();
        let why = why(shop.name().await);
        assert!(why.ends_with(", No"), "{why}");
        assert!(elapsed_since(since) < ms(500), "{:?}", elapsed_since(since));
    });
}

/// Of the calls that a lost connection had queued, those that were not begun to be written were not
/// executed.
#[pikake::sim(seeds = 1)]
async fn a_call_that_was_not_written_is_not_executed() {
    let (door, keeper) = (Door::new(), Keeper::default());
    let options = PacketOptions::new().queue_limit(1 << 20).stall(ms(1_000));
    let shop = ShopClient::new(door.add(Client::builder().packets(options), "shop").build());
    let first = spawn(shop.length(vec![7; 10_000]));
    let _peer = door.play([10, 16]).await;
    // The first call is begun to be written before the second one is queued.
    pause(ms(1)).await;
    let second = spawn(shop.length(vec![7; 10_000]));
    // The peer takes no more than the stream buffers.
    pause(ms(500)).await;
    door.serve(&keeper, Server::new);
    let why = why(first.await.unwrap());
    assert!(why.ends_with(", Maybe"), "{why}");
    assert_eq!(second.await.unwrap().unwrap(), 10_000);
}

/// A peer that is silent is found by its silence, and connected to again.
#[test]
fn a_partition_ends_calls_and_heals() {
    let between = || Between::two_way(["client"], ["shop"]);
    let faults = [(1_000, Fault::Partition(between())), (60_000, Fault::Heal(between()))];
    with_faults(&faults, async |shop| {
        assert_eq!(shop.name().await.unwrap(), "tcp");
        pause(ms(1_500)).await;
        let why = why(shop.name().await);
        assert!(why.ends_with(", Maybe"), "{why}");
        pause(ms(60_000)).await;
        assert_eq!(shop.name().await.unwrap(), "tcp");
    });
}

#[test]
fn a_name_with_several_addresses_is_tried_through() {
    let mut sim = Sim::new(3);
    sim.host("shop", || serve_shop(Closing::new()));
    // Nobody is at the first address.
    sim.addresses("shop", ["10.9.9.9".parse().unwrap(), "10.0.0.77".parse().unwrap()]);
    sim.faults(FaultPlan::new());
    let named = sim.run_here("client", async {
        ShopClient::new(Client::tcp("shop:7000")).name().await.unwrap()
    });
    assert_eq!(named.unwrap().outcome.unwrap(), "tcp");
}

/// The figures of clients that are not zero.
fn client_figures() -> Vec<String> {
    let shown = figures::collect().into_iter().filter_map(|figure| {
        let name = figure.name.strip_prefix("pikake_rpc_client_")?;
        let labels: Vec<_> = figure.labels.iter().map(|(_, value)| value.as_str()).collect();
        match figure.value {
            Value::Gauge(count) | Value::Counter(count) if count > 0 => {
                Some(format!("{name} {} {count}", labels.join(" ")))
            }
            _ => None,
        }
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort();
    shown
}

#[pikake::sim(seeds = 1)]
async fn figures_count_calls_by_their_outcome() {
    let (_, shop, _) = shop();
    shop.sell(1).await.unwrap();
    assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
    shop.note("noted".to_owned()).await.unwrap();
    let (away, _) = away(Client::builder().attempts(2), "away");
    ShopClient::new(away.build()).sell(1).await.unwrap_err();
    let call = spawn(shop.sell(60_000));
    pause(ms(1)).await;
    let expected = [
        "calls Shop.note answered 1",
        "calls Shop.sell answered 1",
        "calls Shop.sell connection 1",
        "calls Shop.sell given_up 1",
        "connections failed 2",
        "connections opened 1",
        "repeats  1",
        "running_calls Shop.sell 1",
    ];
    assert_eq!(client_figures(), expected);
    call.abort();
    pause(ms(1)).await;
    assert!(client_figures().contains(&"calls Shop.sell given_up 2".to_owned()));
    assert!(!client_figures().iter().any(|figure| figure.starts_with("running")));
}

/// A client may be kept beyond its kernel, with calls and attempts under way, and works on the next
/// one.
#[test]
fn a_client_outlives_its_kernel() {
    let keeper = Keeper::default();
    let is_slow = Rc::new(Cell::new(false));
    let (serving, slow) = (keeper.clone(), is_slow.clone());
    let builder = Client::builder().attempts(1).connections(2).server("shop", move || {
        let (keeper, is_slow) = (serving.clone(), slow.get());
        async move {
            if is_slow {
                sleep(Duration::MAX).await?;
            }
            Ok(serve_stream(&keeper))
        }
    });
    let shop = ShopClient::new(builder.build());
    for _ in 0..2 {
        is_slow.set(false);
        pikake::run(async {
            assert_eq!(shop.sell(1).await.unwrap(), 1);
            is_slow.set(true);
            for _ in 0..4 {
                spawn(shop.sell(60_000)).detach();
            }
            pause(ms(1)).await;
        });
    }
    let kernel = pikake::Kernel::new().unwrap();
    is_slow.set(false);
    kernel.run(async {
        for _ in 0..2 {
            assert_eq!(shop.sell(1).await.unwrap(), 1);
        }
    });
    drop(kernel);
    drop(shop);
    // An attempt to connect ends with its kernel.
    let kernel = pikake::Kernel::new().unwrap();
    let away = ShopClient::new(unreachable(Client::builder(), "away").build());
    kernel.run(async {
        spawn(away.sell(1)).detach();
        pause(ms(1)).await;
    });
    drop(kernel);
    drop(away);
    assert_eq!(keeper.under_way(), 0);
}

/// What a caller awaits after its deadline is its cleanup, which the deadline does not end.
#[pikake::sim(seeds = 1)]
async fn calls_of_a_cleanup_have_time() {
    let (_, shop, _) = shop();
    let cleaned = Cell::new(0);
    let timed_out = timeout_after(ms(10), async {
        let error = shop.sell(60_000).await.unwrap_err();
        assert!(error.interrupted().is_some());
        cleaned.set(shop.sell(50).await.unwrap());
    });
    assert!(timed_out.await.is_err());
    assert_eq!(cleaned.get(), 50);
}

/// Calls go on over a server's orderly end and its successor: none is lost, none is executed twice.
#[test]
fn an_orderly_end_of_the_server_loses_no_call() {
    pikake::sim::Runs::new("orderly end of the server").seeds(15).run(|sim| {
        sim.host("shop", || async {
            for _ in 0..20 {
                let closing = Closing::new();
                let server = spawn(serve_shop(closing.clone()));
                sleep(ms(pikake::random::range(20..300))).await?;
                closing.begin();
                server.await.unwrap();
            }
            serve_shop(Closing::new()).await;
            Ok::<_, Interrupted>(())
        });
        sim.client("client", || async {
            let shop = ShopClient::new(Client::builder().tcp("shop:7000").attempts(10).build());
            let tasks = [(); 5].map(|()| {
                let shop = shop.clone();
                spawn(async move {
                    for _ in 0..100 {
                        let millis = pikake::random::range(0..40);
                        assert_eq!(shop.sell(millis).await?, millis);
                    }
                    Ok::<_, CallError>(())
                })
            });
            for task in tasks {
                task.await.unwrap()?;
            }
            Ok::<_, CallError>(())
        });
    });
}

/// Listings name the method, the server and the call.
#[pikake::sim(seeds = 1)]
async fn waits_of_callers_are_described() {
    let (_, shop, _) = shop();
    let call = spawn(shop.sell(10));
    pause(ms(1)).await;
    tasks_from(0, 100).tasks.iter().for_each(|task| task.inspect());
    pause(ms(1)).await;
    let waits = call.task_ref().waits();
    let about = waits[0].about.as_ref().unwrap();
    assert_eq!(about.text(), "Shop.sell at shop, call 1");
    call.await.unwrap().unwrap();
}
