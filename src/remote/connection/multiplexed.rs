//! A connection, its handles, and the tasks that end with it.

use std::{future::Future, sync::Arc};

use crate::{
    error::Error,
    task::{LastingTask, home},
};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, aio::MultiplexedConnection};
use tokio::runtime::Id;

use super::{
    classify,
    driver::{Driver, DriverTask, current_runtime},
    server_run::{ServerRun, info_server},
    stream::BoxedStream,
    write_first::WriteFirst,
};

/// A connection, as its lane holds it.
pub(super) struct Connection {
    handle: ConnectionHandle,
    /// Its place in the application's pool, if it comes from one.
    pooled: Option<deadpool_redis::Connection>,
    /// The run of the server that it leads to, if it is known.
    pub run: Option<ServerRun>,
}

/// A connection for one call. It stays open until its last handle is dropped.
#[derive(Clone)]
pub(super) struct ConnectionHandle {
    pub multiplexed: MultiplexedConnection,
    /// `None` for a connection of a pool, which has its own.
    tasks: Option<Arc<Tasks>>,
}

impl ConnectionHandle {
    /// Writes what was sent, without waiting for the connection's task.
    pub fn drive(&self) {
        if let Some(tasks) = &self.tasks {
            tasks.driver.drive();
        }
    }
}

/// The tasks of a connection, which outlive the runtime that dialled it: others share the connection. The one that reads
/// replies would otherwise wait for those that never come.
pub(super) struct Tasks {
    tasks: Vec<LastingTask>,
    driver: Arc<Driver>,
    /// Where they began.
    runtime: Option<Id>,
}

/// Starts to use a stream. Nothing is sent yet.
///
/// # Errors
///
/// Those of the client library.
pub(super) async fn multiplex(
    stream: BoxedStream,
) -> Result<(MultiplexedConnection, Tasks), Error> {
    // The store keeps these timeouts itself: those of the client library need a runtime with timers.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    // Without credentials: the handshake of the library reports each error to AUTH as a wrong password.
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (multiplexed, driver) =
        MultiplexedConnection::new_with_config(&silent, WriteFirst::new(stream), config)
            .await
            .map_err(classify::classify)?;
    Ok((multiplexed, Tasks::of(driver)))
}

impl Connection {
    /// Returns a connection after its handshake.
    pub fn new(multiplexed: MultiplexedConnection, tasks: Tasks, run: Option<ServerRun>) -> Self {
        Self {
            handle: ConnectionHandle {
                multiplexed,
                tasks: Some(Arc::new(tasks)),
            },
            pooled: None,
            run,
        }
    }

    /// Returns a connection of the application's pool.
    pub fn pooled(pooled: deadpool_redis::Connection) -> Self {
        Self {
            handle: ConnectionHandle {
                multiplexed: MultiplexedConnection::clone(&pooled),
                tasks: None,
            },
            pooled: Some(pooled),
            run: None,
        }
    }

    /// Asks for the run of the server. It stays unknown if the user may not run the command.
    ///
    /// # Errors
    ///
    /// Those of the connection, and that the server runs a slow script.
    pub async fn identify(mut self) -> Result<Self, Error> {
        let info = info_server();
        let sending = self.handle.multiplexed.send_packed_command(&info);
        let reply = sending.await.map_err(classify::classify)?;
        self.run = ServerRun::of(&reply, None)?;
        Ok(self)
    }

    /// Returns whether a pool of the application drives it.
    pub fn is_of_pool(&self) -> bool {
        self.pooled.is_some()
    }

    /// Returns whether the current runtime drives it. Not known of one of a pool, nor of one that went home.
    pub fn is_driven_here(&self) -> bool {
        let tasks = self.handle.tasks.as_ref();
        tasks.is_some_and(|tasks| tasks.runtime.is_some() && tasks.runtime == current_runtime())
    }

    pub fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }

    /// Gives up a broken connection. If it is of a pool, the pool may make another one.
    pub fn discard(self) {
        if let Some(pooled) = self.pooled {
            drop(deadpool_redis::Connection::take(pooled));
        }
    }
}

impl Tasks {
    /// Starts the task that drives a connection.
    pub fn of(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        let driver = Driver::new(driver);
        let mut tasks = Self {
            tasks: Vec::new(),
            driver: Arc::clone(&driver),
            runtime: current_runtime(),
        };
        tasks.add(DriverTask(driver));
        tasks
    }

    /// Starts another task that ends with the connection.
    pub fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(home::spawn_lasting(Box::pin(task)));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.cancel();
        }
    }
}
