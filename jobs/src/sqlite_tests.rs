//! A disk that is full, which only the connection itself can pretend.

use pikake_kernel::Kernel;
use tempfile::TempDir;

use super::*;

#[test]
fn a_full_disk_loses_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    Kernel::new().unwrap().run(async {
        let broker = SqliteBroker::open(&path).await.unwrap();
        broker.declare("work", &QueueOptions::default()).await.unwrap();
        broker.publish("work", Message::default(), None).await.unwrap();
        limit(&broker, 40).await;
        let big = Message { body: vec![0; 1 << 20], ..Message::default() };
        let error = broker.publish("work", big.clone(), None).await.unwrap_err();
        assert!(!error.is_uncertain, "{error}");
        assert!(matches!(
            &error.cause,
            PublishFailure::Broker(BrokerError::Io(error))
                if error.kind() == std::io::ErrorKind::StorageFull
        ));
        assert!(*error.message == big);
        // What was there can be taken still.
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        broker.ack(delivery.receipt).await.unwrap();
        limit(&broker, 1 << 20).await;
        broker.publish("work", *error.message, None).await.unwrap();
        assert_eq!(deliveries.next().await.unwrap().unwrap().message, big);
    });
}

async fn limit(broker: &SqliteBroker, pages: u32) {
    let limited = broker.0.link.call(move |desk| {
        desk.db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(())
    });
    limited.await.unwrap();
}
