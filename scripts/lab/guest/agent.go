package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

type object = map[string]any

// agent answers on the port named org.qemu.guest_agent.0, if there is one. The port reads as ended while nobody is
// connected outside.
func agent() {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, n := range names {
		if b, _ := os.ReadFile(n); strings.TrimSpace(string(b)) != "org.qemu.guest_agent.0" {
			continue
		}
		port, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
		if err != nil {
			fmt.Println("guest:", err)
			return
		}
		for {
			in := bufio.NewReader(port)
			for {
				line, err := in.ReadBytes('\n')
				if err != nil {
					break
				}
				answer(port, bytes.TrimLeft(line, "\xff"))
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func answer(port io.Writer, line []byte) {
	var q struct {
		Execute   string
		Arguments object
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if d.Decode(&q) != nil {
		return
	}
	var reply any = object{}
	var lead []byte
	switch q.Execute {
	case "guest-sync-delimited":
		lead, reply = []byte{0xff}, q.Arguments["id"]
	case "guest-sync":
		reply = q.Arguments["id"]
	case "guest-ping":
	case "guest-info":
		reply = object{"version": "7.2.0", "supported_commands": []object{}}
	case "guest-get-host-name":
		h, _ := os.Hostname()
		reply = object{"host-name": h}
	case "guest-get-osinfo":
		reply = object{"id": "tiny", "name": "tiny", "pretty-name": "tiny"}
	case "guest-network-get-interfaces":
		reply = interfaces()
	case "guest-shutdown":
		go off(q.Arguments["mode"] == "reboot")
		return
	default:
		write(port, nil, object{"error": object{"class": "CommandNotFound", "desc": "The command " + q.Execute + " has not been found"}})
		return
	}
	write(port, lead, object{"return": reply})
}

func write(port io.Writer, lead []byte, v any) {
	b, _ := json.Marshal(v)
	port.Write(append(append(lead, b...), '\n'))
}

func interfaces() []object {
	out := []object{}
	all, _ := net.Interfaces()
	for _, i := range all {
		list := []object{}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				kind := "ipv6"
				if n.IP.To4() != nil {
					kind = "ipv4"
				}
				ones, _ := n.Mask.Size()
				list = append(list, object{"ip-address": n.IP.String(), "ip-address-type": kind, "prefix": ones})
			}
		}
		mac := i.HardwareAddr.String()
		if mac == "" {
			mac = "00:00:00:00:00:00"
		}
		out = append(out, object{"name": i.Name, "hardware-address": mac, "ip-addresses": list})
	}
	return out
}
