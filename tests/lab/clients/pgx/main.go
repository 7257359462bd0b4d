// Command lab-app is a small service on pgx and its pool: a goroutine per worker.
// What its modes do and what it prints stands in ../__init__.py, once for all clients.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const retry = 100 * time.Millisecond

var (
	mode        = flag.String("mode", "", "what a unit of work is")
	seconds     = flag.Float64("seconds", 5, "ends by itself after this long")
	workers     = flag.Int("workers", 2, "goroutines")
	size        = flag.Int("pool", 0, "connections; 0: by mode")
	name        = flag.String("name", "lab-app", "application_name")
	every       = flag.Float64("every", 2, "seconds between two lines")
	pauseMS     = flag.Float64("pause-ms", 5, "between two units")
	idCount     = flag.Int("ids", 1000, "single rows have ids from 1 to this")
	rowCount    = flag.Int("rows", 20000, "bulk, stream: rows of a unit")
	sleepMS     = flag.Float64("sleep-ms", 200, "slow: in the server")
	rowID       = flag.Int("row", 1, "write: the row")
	holdMS      = flag.Float64("hold-ms", 200, "hold-*: while a connection is held")
	rowSleepMS  = flag.Float64("row-sleep-ms", 5, "stream: after each 100 rows")
	metricsPort = flag.Int("metrics-port", 0, "0: no page")
)

type app struct {
	pool       *pgxpool.Pool
	config     *pgx.ConnConfig
	waiting    atomic.Int32
	turnsPerMS float64

	mutex           sync.Mutex // for all below
	units, failures int
	failure         any
	unitMS          []float64
	acquireMS       []float64
	queryMS         []float64
}

var ctx = context.Background()

func (a *app) note(samples *[]float64, began time.Time) {
	a.mutex.Lock()
	*samples = append(*samples, time.Since(began).Seconds()*1e3)
	a.mutex.Unlock()
}

// connection hands a connection to use, and gives it back or closes it.
func (a *app) connection(use func(*pgx.Conn) error) error {
	began := time.Now()
	a.waiting.Add(1)
	conn, give, err := a.acquire()
	a.waiting.Add(-1)
	if err != nil {
		return err
	}
	defer give()
	a.note(&a.acquireMS, began)
	return use(conn)
}

func (a *app) acquire() (*pgx.Conn, func(), error) {
	if *mode == "connect" {
		conn, err := pgx.ConnectConfig(ctx, a.config)
		return conn, func() { _ = conn.Close(ctx) }, err
	}
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return conn.Conn(), conn.Release, nil
}

func (a *app) work(number int) {
	for {
		began := time.Now()
		err := a.connection(func(conn *pgx.Conn) error { return modes[*mode](a, conn, number) })
		if err != nil {
			a.mutex.Lock()
			a.failures++
			a.failure = kind(err)
			a.mutex.Unlock()
			time.Sleep(retry)
		} else {
			a.mutex.Lock()
			a.units++
			a.mutex.Unlock()
			a.note(&a.unitMS, began)
		}
		pause(*pauseMS)
	}
}

// kind is the SQLSTATE or the innermost error's name: never a message, which may tell more.
func kind(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	if errors.Is(err, errShort) {
		return errShort.Error()
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
}

// percentile is the nearest rank, nil without samples.
func percentile(samples []float64, share float64) any {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return math.Round(samples[int(math.Round(share*float64(len(samples)-1)))]*1e3) / 1e3
}

// say writes one line, by one write.
func (a *app) say(key string, value any) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	record := map[string]any{
		"load": *mode, "client": "pgx", "units": a.units, "failures": a.failures, "error": a.failure, "pool": nil,
		"p50_ms": percentile(a.unitMS, 0.5), "p99_ms": percentile(a.unitMS, 0.99),
		"acquire_p50_ms": percentile(a.acquireMS, 0.5), "acquire_p99_ms": percentile(a.acquireMS, 0.99),
		"query_p50_ms": percentile(a.queryMS, 0.5),
	}
	if *mode != "connect" {
		stat := a.pool.Stat()
		record["pool"] = map[string]any{"size": stat.TotalConns(), "max": stat.MaxConns(),
			"checked_out": stat.AcquiredConns(), "waiting": a.waiting.Load()}
	}
	if key != "" {
		record[key] = value
	}
	a.unitMS, a.acquireMS, a.queryMS, a.failure = nil, nil, nil, nil
	line, _ := json.Marshal(record)
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// page has the names of IBM's pgxpoolprometheus, whatever is asked for.
func (a *app) page(answer http.ResponseWriter, _ *http.Request) {
	stat := a.pool.Stat()
	for _, each := range []struct {
		name, kind string
		value      int64
	}{
		{"acquire_count", "counter", stat.AcquireCount()},
		{"acquire_duration_ns", "counter", int64(stat.AcquireDuration())},
		{"acquired_conns", "gauge", int64(stat.AcquiredConns())},
		{"canceled_acquire_count", "counter", stat.CanceledAcquireCount()},
		{"constructing_conns", "gauge", int64(stat.ConstructingConns())},
		{"empty_acquire", "counter", stat.EmptyAcquireCount()},
		{"empty_acquire_wait_time_ns", "counter", int64(stat.EmptyAcquireWaitTime())},
		{"idle_conns", "gauge", int64(stat.IdleConns())},
		{"max_conns", "gauge", int64(stat.MaxConns())},
		{"total_conns", "gauge", int64(stat.TotalConns())},
	} {
		fmt.Fprintf(answer, "# TYPE pgxpool_%[1]s %[2]s\npgxpool_%[1]s %[3]d\n", each.name, each.kind, each.value)
	}
}

func optionsOf() map[string]any {
	found := map[string]any{}
	flag.VisitAll(func(each *flag.Flag) {
		if each.Name != "mode" {
			found[strings.ReplaceAll(each.Name, "-", "_")] = each.Value.(flag.Getter).Get()
		}
	})
	return found
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}

func main() {
	flag.Parse()
	if modes[*mode] == nil {
		fail("mode: " + *mode + " is none; they stand in tests/lab/clients/__init__.py")
	}
	if os.Getenv("LAB_DSN") == "" {
		fail("LAB_DSN is not set; it must be the URI of a PostgreSQL database")
	}
	config, err := pgxpool.ParseConfig(os.Getenv("LAB_DSN"))
	if err != nil {
		fail("LAB_DSN: cannot be parsed as the URI of a PostgreSQL database") // the error quotes a part of it
	}
	connections := *size
	if connections == 0 {
		connections = *workers
		if strings.HasPrefix(*mode, "hold-") {
			connections = max(1, *workers/2)
		}
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.RuntimeParams["application_name"] = *name
	a := &app{config: config.ConnConfig.Copy(), turnsPerMS: calibrate()}
	if a.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		fail(kind(err))
	}
	a.say("options", optionsOf())
	if *metricsPort != 0 {
		go func() {
			fail(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *metricsPort), http.HandlerFunc(a.page)).Error())
		}()
	}
	for number := range *workers {
		go a.work(number)
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	over := time.After(time.Duration(*seconds * 1e9))
	due := time.NewTicker(time.Duration(*every * 1e9))
	for {
		select {
		case <-due.C:
			a.say("", nil)
		case <-told:
			a.say("done", 1)
			return
		case <-over:
			a.say("done", 1)
			return
		}
	}
}
