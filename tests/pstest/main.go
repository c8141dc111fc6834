// A Pub/Sub server for tests: Google's own fake. It prints its address, and ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"os"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	server := pstest.NewServer()
	defer server.Close()
	fmt.Println(server.Addr)
	io.Copy(io.Discard, os.Stdin)
}
